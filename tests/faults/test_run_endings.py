"""Ctrl-C and a terminal that goes away, while something trains."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from holdfast_run import HOLDFAST, PYTHON, VICTIMS, Sit, info_of, wait_until

from holdfast.signals.pulse import read_file

FALTERS = str(VICTIMS / "falters.py")


def steps_of(run: Path) -> int:
    pulse = read_file(run / "rank-0" / "pulse")
    return 0 if pulse is None else pulse.steps


def has_stepped(run: Path) -> bool:
    return steps_of(run) > 5


def test_ctrl_c_once_saves_a_checkpoint_and_stops_and_nothing_is_started_again(sit: Sit, tmp_path: Path) -> None:
    words = ["--policy", "heal", "--name", "a", PYTHON, FALTERS, "none", "0", "--steps", "20000"]
    terminal = sit([*HOLDFAST, "run", *words])
    wait_until(lambda: has_stepped(tmp_path / "runs/a"))
    terminal.type(b"\x03")
    seen = terminal.rest()
    assert b"saving a checkpoint after this step" in seen or b"in _next_data" in seen, "it was in a step, or drew a batch"
    assert b"saved " in seen and b"KeyboardInterrupt" in seen and b"restarted" not in seen
    assert terminal.process.wait() == 130 and info_of(tmp_path / "runs/a")["exit_code"] == 130
    assert list((tmp_path / "runs/a/checkpoints").glob("step-*"))


def test_ctrl_c_while_it_waits_for_a_batch_saves_and_the_script_gets_its_own_error(sit: Sit, tmp_path: Path) -> None:
    terminal = sit([*HOLDFAST, "run", "--policy", "guard", "--name", "a", PYTHON, str(VICTIMS / "interrupted_loader.py")])
    wait_until(lambda: has_stepped(tmp_path / "runs/a"))
    terminal.type(b"\x03")
    seen = terminal.rest()
    assert b"saved " in seen and b"the script has caught it" in seen and b"exited unexpectedly" not in seen
    assert terminal.process.wait() == 0


@pytest.mark.slow
def test_ctrl_c_twice_stops_at_once_in_the_middle_of_a_step(sit: Sit, tmp_path: Path) -> None:
    terminal = sit([*HOLDFAST, "run", "--policy", "guard", "--name", "a", PYTHON, FALTERS, "hang", "30"])
    terminal.until(b"fault: hang")
    terminal.type(b"\x03")
    terminal.until(b"Ctrl-C again stops at once")
    terminal.type(b"\x03")
    assert b"KeyboardInterrupt" in terminal.rest()
    assert terminal.process.wait() == 130 and not (tmp_path / "runs/a/checkpoints").exists()


@pytest.mark.slow
def test_a_terminal_that_goes_away_does_not_end_the_training(sit: Sit, tmp_path: Path) -> None:
    terminal = sit([*HOLDFAST, "run", "--name", "a", PYTHON, FALTERS, "none", "0", "--steps", "20000", "--until", "hung-up"])
    wait_until(lambda: has_stepped(tmp_path / "runs/a"))
    os.close(terminal.keyboard)
    terminal.keyboard = os.open(os.devnull, os.O_RDONLY)
    reached = steps_of(tmp_path / "runs/a")
    wait_until(lambda: steps_of(tmp_path / "runs/a") > reached + 20)
    (tmp_path / "hung-up").touch()
    assert terminal.process.wait(600) == 0
    assert "end: step " in (tmp_path / "runs/a/train.log").read_text()
    assert info_of(tmp_path / "runs/a")["exit_code"] == 0
