"""Real drills of a tiny training: the command as a user types it, and `assert_survives`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from every_case import every_case
from holdfast_run import HOLDFAST, PYTHON, VICTIMS, environment

from holdfast.drills import assert_survives
from holdfast.drills.selection import draw_step
from holdfast.drills.suite import run_suite
from holdfast.drills.trial import Training, run_trial
from holdfast.errors import ControlFailed, UsageError

ROOT = Path(__file__).parents[3]
SCRIPT = VICTIMS / "quick_to_learn.py"
TRUE_ON_A_BUSY_MACHINE = {"slow-step", "slow-loading"}
OWN = ROOT / "examples" / "faults" / "sensor_off.py"


def drill(folder: Path, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HOLDFAST, "drill", *words],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict[str, Any], Path]:
    """One control, a fault, and one that this training cannot have."""
    folder = tmp_path_factory.mktemp("course")
    words = ["--faults", "nan-batch,slow-worker", "--controls", "1", "--seed", "3"]
    answer = drill(folder, *words, "--json", "--", PYTHON, str(SCRIPT))
    return answer, json.loads(answer.stdout), folder


def test_a_drill_says_what_was_seen_explained_done_and_survived(course: Any) -> None:
    answer, told, _ = course
    assert answer.returncode == int(not told["totals"]["good"]), answer.stderr
    (row,) = told["faults"]
    assert row["injected"] and row["seen"] in ("non-finite-loss", "non-finite-input") and row["cause_right"], row
    assert row["survived"] and row["actions"] == ["skip-batch"] and row["lost_steps"] == 1, row
    assert row["at"] == draw_step("nan-batch", 3, 160) and row["metric"] == pytest.approx(row["control_metric"], abs=0.02)
    assert told["totals"]["survived"] == 1


def test_a_drill_begins_with_a_training_that_nobody_breaks_and_that_raises_nothing(course: Any) -> None:
    answer, told, _ = course
    (control,) = told["controls"]
    assert (
        set(control["false_alarms"]) <= TRUE_ON_A_BUSY_MACHINE
        and control["steps"] == 160
        and control["metric_name"] == "val accuracy"
    )
    assert answer.stderr.index("no fault, heal, seed 3") < answer.stderr.index("nan-batch at step")


def test_a_fault_that_the_training_cannot_have_is_left_out_with_a_word(course: Any) -> None:
    assert course[1]["skipped"] == [{"training": "quick_to_learn", "fault": "slow-worker", "why": "not several loader workers"}]


def test_runs_in_which_nothing_was_missed_leave_nothing_behind(course: Any) -> None:
    kept = {control["run"] for control in course[1]["controls"] if control["false_alarms"]}
    assert {str(file.parent) for file in course[2].rglob("run.json")} == kept


@pytest.fixture
def train() -> Any:
    """A function of a light module, which a process of its own loads again."""
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[SCRIPT.stem] = module
    spec.loader.exec_module(module)
    return module.main


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_a_function_in_a_test_survives_a_fault_of_the_users_own(train: Any, apart: Path) -> None:
    found = assert_survives(train, "sensor-off", at=80, fault_file=OWN)
    assert found.survived and found.at == 80 and found.seen in ("non-finite-loss", "non-finite-input") and found.cause_right
    assert not list(apart.glob("holdfast-drill-*")), "a drill that went well leaves nothing behind"
    with pytest.raises(UsageError, match="not several loader workers"):
        assert_survives(train, "slow-worker")
    with pytest.raises(UsageError, match="beyond the end of the run, which has 160 steps"):
        assert_survives(train, "nan-batch", at=5000)
    with pytest.raises(UsageError, match="unknown fault 'nan-bach'"):
        assert_survives(train, "nan-bach")


@pytest.mark.slow
def test_a_fault_that_is_not_seen_and_not_survived_fails_the_test_in_words_and_keeps_the_run(train: Any, apart: Path) -> None:
    (apart / "deaf.py").write_text(
        "from holdfast.drills import Expected, Fault\n"
        "class Deaf(Fault):\n"
        "    code, description = 'deaf', 'the process ends, and nobody can see why'\n"
        "    expected = Expected(findings=('hang',), survivable=True)\n"
        "    def update(self, context): raise SystemExit(0)\n"
    )
    with pytest.raises(AssertionError, match=r"deaf at step 80, heal: NOT SEEN.*not survived \(\d+ of 160 steps\)") as told:
        assert_survives(train, "deaf", at=80, fault_file=apart / "deaf.py")
    assert "accuracy – with the fault" in str(told.value), "its last loss was compared with the accuracy of the control"
    assert Path(str(told.value).split()[-1]).is_dir()


@every_case(
    ("words", "said"),
    [
        (["-c", "raise ValueError('no data')"], "exits with code 1:\n  | Traceback"),
        (["-c", "print('trained')"], "makes no step of a torch optimizer"),
    ],
)
def test_a_command_that_fails_or_does_not_train_is_told_with_its_last_lines(words: list[str], said: str, tmp_path: Path) -> None:
    training = Training(command=(sys.executable, *words), name="bad")
    with pytest.raises(ControlFailed) as told:
        run_suite([training], ["nan-batch"], policies=["observe"], seeds=[0], folder=tmp_path)
    assert said in told.value.problem and ("no data" in told.value.problem or "| trained" in told.value.problem)


def test_a_training_without_an_optimizer_is_told_why_nothing_can_be_injected(tmp_path: Path) -> None:
    by_hand = (
        "import torch\n"
        "layer = torch.nn.Linear(2, 1)\n"
        "for _ in range(30):\n"
        "    layer(torch.ones(4, 2)).sum().backward()\n"
        "    with torch.no_grad(): layer.weight -= 0.01 * layer.weight.grad\n"
        "    layer.zero_grad()\n"
    )
    training = Training(command=(sys.executable, "-c", by_hand), name="by-hand")
    with pytest.raises(ControlFailed, match="without an optimizer of torch or Keras"):
        run_suite([training], ["nan-gradient"], policies=["observe"], seeds=[0], folder=tmp_path)


def test_a_run_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    child = (
        "import subprocess, sys; subprocess.Popen(['sleep', '300']); print('here', flush=True); subprocess.run(['sleep', '300'])"
    )
    training = Training(command=(sys.executable, "-c", child), name="slow")
    begun = time.monotonic()
    trial = run_trial(training, (), policy=None, seed=0, folder=tmp_path / "trial", seconds=2)
    assert trial.ended == "took too long" and trial.exit_code != 0 and "here" in trial.output
    assert time.monotonic() - begun < 60
    mark = f"{tmp_path}".encode()
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and mark in _environ(pid)] if Path("/proc").is_dir() else []  # noqa: PTH208
    assert not left, "a process of the drill goes on behind it"


def _environ(pid: str) -> bytes:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return b""
    return next((one for one in variables if one.startswith(b"HOLDFAST_DRILL=")), b"")


def test_each_run_has_a_folder_of_its_own_for_what_it_writes(tmp_path: Path) -> None:
    words = (sys.executable, "-c", "import sys, os; print(os.getcwd(), sys.argv[1], os.environ['SEED'])", "{folder}/out")
    trial = run_trial(Training(command=words, name="prints"), (), policy=None, seed=3, folder=tmp_path / "one")
    assert trial.output.split() == [str(tmp_path / "one" / "work"), str(tmp_path / "one" / "out"), "3"]


@pytest.mark.slow
def test_faults_of_checkpoints_are_seen_explained_and_survived(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "drill_trainings" / "digits_mlp.py"
    faults = "checkpoint-nan-best,checkpoint-truncated,checkpoint-bit-flip,disk-full"
    answer = drill(tmp_path, "--faults", faults, "--controls", "1", "--json", "--", PYTHON, str(script))
    for row in json.loads(answer.stdout)["faults"]:
        assert row["injected"] and row["seen"] and row["cause_right"] and row["survived"], row
