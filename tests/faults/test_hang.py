"""A training that hangs is found from outside, with its culprit; one that is only slow, busy or stopped is left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import HOLDFAST, PYTHON, VICTIMS, environment, findings_of, run, start, wait_until

from holdfast.supervisor.progress import process_state

FALTERS = str(VICTIMS / "falters.py")
SOON = {"HOLDFAST_BACK_OFF": "0.1"}


def hangs_of(folder: Path) -> list[dict[str, Any]]:
    return [row for row in findings_of(folder) if row["severity"] == "critical"]


def actions_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "action"]


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that hangs under `observe`; it is left as it is."""
    folder = tmp_path_factory.mktemp("hung")
    process = start(folder, "--name", "a", "--hang-after", "2", PYTHON, FALTERS, "hang", "30", "--own")
    try:
        wait_until(lambda: bool(hangs_of(folder / "runs/a")), 60)
        yield folder
        assert process.poll() is None, "observing must not end it"
    finally:
        process.terminate()
        process.communicate(timeout=20)


def ask(folder: Path, *words: str) -> str:
    done = subprocess.run([*HOLDFAST, *words], cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    return done.stdout


def test_a_hang_is_told_with_the_line_that_it_stands_in(hung: Path) -> None:
    (row,) = hangs_of(hung / "runs/a")
    assert (row["code"], row["step"]) == ("hang", 30)
    assert "falters.py" in row["evidence"]["where"] and row["evidence"]["seconds"] >= row["evidence"]["limit"]


def test_the_stacks_of_the_hang_are_kept_in_the_run(hung: Path) -> None:
    (row,) = hangs_of(hung / "runs/a")
    assert (hung / "runs/a" / row["evidence"]["stacks"]).exists()


def test_ps_and_diagnose_show_the_hang(hung: Path) -> None:
    state = json.loads(ask(hung, "ps", "--json"))
    assert "hangs" in json.dumps(state)
    said = json.loads(ask(hung, "diagnose", "a", "--json"))["runs"][0]
    assert said["verdict"] == "ill" and said["findings"][0]["code"] == "hang"


def test_a_hung_process_that_is_stopped_or_read_meanwhile_is_not_said_to_move_again(hung: Path) -> None:
    pid = hangs_of(hung / "runs/a")[0]["evidence"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(pid, signal.SIGCONT)
    time.sleep(1.0)
    told = findings_of(hung / "runs/a")
    assert len(hangs_of(hung / "runs/a")) == 1 and not any("moves again" in row["evidence"].get("say", "") for row in told)


def test_a_slow_start_a_long_evaluation_a_slow_save_and_a_stop_are_no_hang(tmp_path: Path) -> None:
    script = """
import os, time, torch
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
class Slow:
    def __reduce__(self):
        time.sleep(2.0)
        return (str, ())
for step in range(60):
    model.train()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    if step == 0: time.sleep(2.5)
    loss.backward()
    optimizer.step()
    if step == 20:
        model.eval(); time.sleep(2.5)
    if step == 30: torch.save({"model": model.state_dict(), "slow": Slow()}, "slow.pt")
    if step == 40: print("stop me", os.getpid(), flush=True)
    time.sleep(0.02)
print("done")
"""
    with start(tmp_path, "--name", "a", "--hang-after", "0.5", PYTHON, "-c", script) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline().split()[-1])
        os.kill(pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(pid, signal.SIGCONT)
        assert process.stdout.read() == "done\n"
    told = findings_of(tmp_path / "runs/a")
    assert [row for row in told if row["severity"] != "info"] == []
    assert any("stopped" in row["evidence"].get("say", "") for row in told)


def test_under_heal_a_hung_worker_is_named_and_the_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    words = ("--policy", "heal", "--name", "a", "--hang-after", "2", "--resume-args", "--resume {checkpoint}")
    done = run(tmp_path, *words, PYTHON, FALTERS, "worker-hang", "50", "--own", "--workers", "2", env=SOON, timeout=120)
    assert done.returncode == 0 and "end: step 120" in done.stdout
    (row,) = hangs_of(tmp_path / "runs/a")
    assert row["code"] == "loader-stall" and "worker" in row["evidence"]["say"]
    restart = actions_of(tmp_path / "runs/a")[-1]
    assert (restart["action"], restart["because"], restart["checkpoint_step"]) == ("restart", "loader-stall", 40)


def test_a_hung_process_that_does_not_hear_and_its_child_elsewhere_are_both_ended(tmp_path: Path) -> None:
    words = ("--policy", "heal", "--name", "a", "--hang-after", "2", "--restarts", "0")
    done = run(tmp_path, *words, PYTHON, FALTERS, "hang-deaf", "30", env=SOON, timeout=120)
    assert done.returncode == 137
    child = int((tmp_path / "child").read_text())
    assert process_state(child) in ("Z", "X")
    ended = actions_of(tmp_path / "runs/a")[0]
    assert ended["action"] == "end-processes" and "2 of them killed" in ended["detail"]


def test_a_rank_that_never_comes_to_its_backward_pass_is_the_one_that_the_others_wait_for(tmp_path: Path) -> None:
    torchrun = str(Path(PYTHON).with_name("torchrun"))
    words = (torchrun, "--standalone", "--nproc_per_node=2", str(VICTIMS / "hangs_ddp.py"))
    process = start(tmp_path, "--name", "a", "--hang-after", "2", *words)
    try:
        wait_until(lambda: bool(hangs_of(tmp_path / "runs/a")), 120)
        (row,) = hangs_of(tmp_path / "runs/a")
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert row["code"] == "collective-stall" and row["evidence"]["missing"] == [1]
    assert "rank 1 is in read() of a pipe in wait_for_settings()" in row["evidence"]["say"]
    assert "hangs_ddp.py" in row["evidence"]["where"] and row["evidence"]["where"].endswith("in wait_for_settings")
