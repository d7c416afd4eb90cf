"""A scheduler takes the machine back: the training saves between two steps, exits with 75, and resumes later."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from holdfast_run import PYTHON, VICTIMS, info_of, run, start, typed, wait_until

from holdfast.probe.rows import last_rows
from holdfast.signals.run_folder import RunFolder

VICTIM = str(VICTIMS / "counts_to_the_end.py")
AGAIN = ("--name", "a", "--policy", "heal", "--resume")


def has_steps(run_folder: Path) -> bool:
    recordings = RunFolder(run_folder).recordings() if run_folder.is_dir() else []
    return any(len(last_rows(one.path, "steps", ("step",), 5)["step"]) >= 5 for one in recordings)


def signalled(folder: Path, number: signal.Signals, *command: str, everyone: bool = False) -> subprocess.Popen[str]:
    """Start a run, send a signal to `holdfast run` or to all of its processes, and wait for the end."""
    process = start(folder, *AGAIN, "--", *command, stdin=subprocess.DEVNULL)
    wait_until(lambda: has_steps(folder / "runs/a"))
    if everyone:
        os.kill(info_of(folder / "runs/a")["pid"], number)
    process.send_signal(number)
    process.wait(timeout=120)
    return process


@pytest.mark.slow
def test_a_preempted_training_exits_with_75_and_ends_with_the_weights_of_one_that_nobody_stopped(tmp_path: Path) -> None:
    undisturbed = subprocess.run([PYTHON, VICTIM, "400", "0"], capture_output=True, text=True, check=True).stdout
    stopped = signalled(tmp_path, signal.SIGTERM, PYTHON, VICTIM, "400", "0.05", everyone=True)  # as Slurm does it
    assert stopped.returncode == 75 and info_of(tmp_path / "runs/a")["exit_code"] == 75
    (row,) = (row for row in RunFolder(tmp_path / "runs/a").journal if row.get("action") == "stop")
    assert row["state"] == "done" and row["because"] == "preempted"
    resumed = run(tmp_path, *AGAIN, "--", PYTHON, VICTIM, "400", "0", stdin=subprocess.DEVNULL)
    assert resumed.returncode == 0 and resumed.stdout == undisturbed
    assert f"training continues at step {row['at']}" in resumed.stderr, resumed.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir() if not path.is_symlink()] == ["a"]


@pytest.mark.slow
def test_a_signal_before_the_first_step_ends_it_and_only_a_preemption_is_tried_again(tmp_path: Path) -> None:
    for number, code in ((signal.SIGTERM, 75), (signal.SIGUSR1, 143)):
        process = start(tmp_path, *AGAIN, "--", "sh", "-c", "echo ready; exec sleep 60", stdin=subprocess.DEVNULL)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(timeout=60) == code


def test_what_resuming_needs_is_said_before_anything_starts(tmp_path: Path) -> None:
    assert "--resume --name my-run" in typed("run", "--resume", "true", folder=tmp_path).stderr
    assert "--policy heal" in typed("run", "--resume", "--name", "a", "true", folder=tmp_path).stderr
    assert "--nodes needs --resume" in typed("run", "--nodes", "2", "true", folder=tmp_path).stderr
    assert "NODE_RANK=0" in typed("run", *AGAIN, "--nodes", "2", "true", folder=tmp_path).stderr
    assert not (tmp_path / "runs").exists()
