"""A command that ends badly: what its run folder says about the end is said, saved, and shown by `holdfast diagnose`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_run import HOLDFAST, PYTHON, VICTIMS, environment, run, start, typed, wait_until

from holdfast.probe.alive import lives
from holdfast.signals.pulse import read_file

FALTERS = str(VICTIMS / "falters.py")
GROUP = Path("/sys/fs/cgroup/memory") / f"holdfast-test-{os.getpid()}"


def test_a_segmentation_fault_leaves_its_stack_and_the_last_step(tmp_path: Path) -> None:
    done = run(tmp_path, "--name", "a", PYTHON, FALTERS, "segv", "30")
    assert done.returncode == 139
    said = done.stderr.splitlines()
    assert said[1].startswith("holdfast: ended by a segmentation fault after step 30 (exit 139)")
    found = json.loads((tmp_path / "runs/a/post-mortem.json").read_text())
    assert (found["step"], found["finding"]["code"]) == (30, "process-died") and found["causes"][0] == "crash-in-a-library"
    assert "falters.py" in found["stack"] and found["last_lines"] == ["fault: segv"]
    assert "stack when it crashed" in (tmp_path / "runs/a/post-mortem.txt").read_text()
    shown = typed("diagnose", "a", "--json", folder=tmp_path)
    assert json.loads(shown.stdout)["runs"][0]["findings"][0]["code"] == "process-died"


RAISES = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
raise KeyError("val")
"""


def test_a_cause_is_as_sure_on_the_terminal_as_in_diagnose(tmp_path: Path) -> None:
    said = run(tmp_path, "--name", "a", PYTHON, "-c", RAISES).stderr
    assert "  possible cause: The script raised the error" in said and "One sample is malformed" not in said
    assert "possible cause: mistake in the script" in typed("diagnose", "a", folder=tmp_path).stdout


LOOKS = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    loss = (1e30 * model(torch.randn(8, 4)).square()).mean() / 1e30
    if not torch.isfinite(loss):
        raise ValueError("Training loss is nan")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 9:
        model.weight.data[0, 0] = 1e37
"""


def test_weights_that_a_script_never_takes_a_step_with_are_named_when_it_ends(tmp_path: Path) -> None:
    run(tmp_path, "--policy", "guard", "--name", "a", PYTHON, "-c", LOOKS)
    shown = " ".join(typed("diagnose", "a", folder=tmp_path).stdout.split())
    assert "weight: a weight of 1e+37" in shown and "cause: weights damaged" in shown, shown


CATCHES = RAISES.replace(
    'raise KeyError("val")',
    "try:\n    torch.empty(1 << 50)\nexcept RuntimeError as error:\n    print('Exception:', error, flush=True)\n"
    "print('the best model is kept')",
)


def test_an_error_that_the_script_catches_and_prints_is_reported_although_it_exits_with_0(tmp_path: Path) -> None:
    caught = run(tmp_path, "--policy", "heal", "--name", "a", PYTHON, "-c", CATCHES)
    assert caught.returncode == 0 and "finished, but host memory ran out at step 19" in caught.stderr
    assert "restarted" not in caught.stderr, "the script has decided to end"
    shown = " ".join(typed("diagnose", "a", folder=tmp_path).stdout.split())
    assert "printed an error and finished as if nothing had happened" in shown and "can't allocate memory" in shown
    harmless = CATCHES.replace("torch.empty(1 << 50)", "raise RuntimeError('no more pictures to upload')")
    told = run(tmp_path, "--name", "b", PYTHON, "-c", harmless)
    assert "finished" not in told.stderr, "an error that is not known may be no harm"


LIMITED = RAISES.replace("import torch", "import resource\nimport torch", 1).replace(
    'raise KeyError("val")',
    "taken = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
    "resource.setrlimit(resource.RLIMIT_AS, (taken + 2**26, resource.RLIM_INFINITY))\n"
    "torch.empty(2**30, dtype=torch.uint8)",
)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_a_limit_on_the_memory_of_a_run_that_lasts_no_second_is_told_from_a_leak(tmp_path: Path) -> None:
    said = run(tmp_path, "--name", "a", PYTHON, "-c", LIMITED).stderr
    assert "[host-out-of-memory]" in said and "cause: The machine had free memory that the process could not get" in said, said


def test_an_error_and_a_rise_of_the_loss_before_it_have_a_cause_each(tmp_path: Path) -> None:
    never_zeroed = RAISES.replace("    optimizer.zero_grad()\n", "").replace("manual_seed(0)", "manual_seed(5)")
    run(tmp_path, "--name", "a", PYTHON, "-c", never_zeroed)
    shown = json.loads(typed("diagnose", "a", "--json", folder=tmp_path).stdout)["runs"][0]
    causes = {code: one["cause"] for one in reversed(shown["diagnoses"]) for code in one["findings"]}
    assert causes["loss-divergence"] == causes["gradients-not-zeroed"] == "zero-grad-missing"
    assert causes["script-error"] == "mistake-in-the-script"


NAN_CRASHES = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = torch.randn(64, 4)
data[40, 2] = float(FILL)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (inputs,) in enumerate(DataLoader(TensorDataset(data), batch_size=8)):
    loss = model(inputs).square().mean()
    if not loss.isfinite() or step == 6:
        loss = torch.tensor(1e9)  # as some libraries do
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("how", ["error", "exit"])
@pytest.mark.parametrize("fill", ["nan", pytest.param("0", marks=pytest.mark.slow)])
def test_an_end_that_a_non_finite_batch_led_to_is_told_with_the_batch(tmp_path: Path, fill: str, how: str) -> None:
    script = NAN_CRASHES.replace("FILL", repr(fill))
    script = script.replace("loss = torch.tensor(1e9)  #", "raise SystemExit('loss is NaN')  #") if how == "exit" else script
    done = run(tmp_path, "--name", "a", "--policy", "guard", PYTHON, "-c", script)
    rows = [json.loads(line) for line in (tmp_path / "runs/a/journal.jsonl").read_text().splitlines()]
    found = [row for row in rows if row.get("code") == "non-finite-input"]
    assert done.returncode == 1 and [(row["step"], row["evidence"]["batch"]["bad_samples"]) for row in found] == (
        [(5, [40])] if fill == "nan" else []
    )


def test_a_mistake_before_the_first_step_is_not_started_again(tmp_path: Path) -> None:
    script = "import torch\nnumber = open('tries', 'a').write('x')\nimport no_such_module_here"
    done = run(tmp_path, "--name", "a", "--policy", "heal", PYTHON, "-c", script)
    assert done.returncode == 1 and (tmp_path / "tries").read_text() == "x"


def test_a_command_that_is_no_training_says_nothing_more(tmp_path: Path) -> None:
    done = run(tmp_path, "--name", "a", "--policy", "heal", "sh", "-c", "echo no >&2; exit 3")
    assert done.returncode == 3 and done.stderr.splitlines()[1:] == ["no"]


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with little memory, where this machine lets us make one."""
    try:
        GROUP.mkdir()
        (GROUP / "memory.limit_in_bytes").write_text(str(700 << 20))
        (GROUP / "memory.memsw.limit_in_bytes").write_text(str(700 << 20))
    except OSError:
        GROUP.rmdir() if GROUP.exists() else None
        pytest.skip("no control group can be made here")
    yield GROUP
    for _ in range(100):
        try:
            GROUP.rmdir()
            return
        except OSError:
            subprocess.run(["sleep", "0.1"], check=False)


def test_the_kernels_kill_for_memory_is_told_as_such(tmp_path: Path, group: Path) -> None:
    enter = f'echo $$ > {group}/cgroup.procs; exec "$@"'
    words = [*HOLDFAST, "run", "--name", "a", PYTHON, FALTERS, "memory", "30"]
    for attempt in range(5):  # before the training's memory is free, the kernel sometimes kills the supervisor as well
        folder = tmp_path / str(attempt)
        folder.mkdir()
        done = subprocess.run(
            ["sh", "-c", enter, "sh", *words], cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
        )
        if done.returncode != -signal.SIGKILL:
            break
    assert done.returncode == 137
    assert "killed by the kernel's OOM killer after step 30" in done.stderr
    found = json.loads((folder / "runs/a/post-mortem.json").read_text())
    assert found["finding"]["code"] == "host-out-of-memory" and found["finding"]["evidence"]["killed_for_memory"] >= 1
    assert sys.platform == "linux"


def test_a_python_without_torch_is_told_the_command_that_has_it(tmp_path: Path) -> None:
    venv.create(tmp_path / "a", with_pip=False)  # a folder with the run's name: the printed command must not mean it
    said = run(tmp_path, "--name", "a", str(tmp_path / "a/bin/python"), "-c", "import torch").stderr
    fix = f"  fix: this Python has no torch; Holdfast's has: holdfast run -- {shlex.quote(PYTHON)} -c 'import torch'"
    assert fix in said and "holdfast diagnose runs/a;" in said
    for target in ("a", "runs/a"):
        assert fix in typed("diagnose", target, folder=tmp_path).stdout


def test_a_failure_before_the_first_step_names_the_error_and_the_python_and_diagnose_exits_1(tmp_path: Path) -> None:
    done = run(tmp_path, "--name", "first", PYTHON, "-c", "import no_such_module_here")
    said = f"failed before the first step: ModuleNotFoundError: No module named 'no_such_module_here' (python = {PYTHON})"
    assert done.returncode == 1 and f"holdfast: {said}" in done.stderr
    assert "holdfast diagnose first; runs/first/post-mortem.txt" in done.stderr
    shown = typed("diagnose", "first", folder=tmp_path)
    assert shown.returncode == 1 and " ".join(shown.stdout.split()) == f"first: {said}"


def test_a_run_that_somebody_ended_says_so_in_diagnose_and_nothing_is_wrong_with_it(tmp_path: Path) -> None:
    process = start(tmp_path, "--name", "a", PYTHON, FALTERS, "none", "0", "--steps", "20000")
    wait_until(lambda: (pulse := read_file(tmp_path / "runs/a/rank-0/pulse")) is not None and pulse.steps > 5)
    process.terminate()
    assert process.wait(60) == 143
    shown = typed("diagnose", "a", folder=tmp_path)
    assert shown.returncode == 0 and "ended by SIGTERM after step" in shown.stdout


def test_a_run_that_was_killed_together_with_holdfast_is_said_to_be_gone(tmp_path: Path) -> None:
    process = start(tmp_path, "--name", "a", PYTHON, FALTERS, "none", "0", "--steps", "20000")
    wait_until(lambda: (pulse := read_file(tmp_path / "runs/a/rank-0/pulse")) is not None and pulse.steps > 5)
    trained = json.loads((tmp_path / "runs/a/run.json").read_text())["pid"]
    process.kill()
    os.kill(trained, signal.SIGKILL)
    process.wait(60)
    wait_until(lambda: lives({"pid": trained, "host": socket.gethostname()}) is False)
    shown = typed("diagnose", "a", folder=tmp_path)
    assert shown.returncode == 1 and "gone without a trace" in shown.stdout and "after step" in shown.stdout
