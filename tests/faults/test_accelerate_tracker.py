"""Accelerate's tracker and state hooks: evaluations, listed checkpoints, an exact resume, a stop through the trigger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_run import PYTHON, VICTIMS, run
from trained_with import Resumed, Trained, python_with, resumed_after_a_kill, steps_and_epochs, verified

from holdfast.signals.run_folder import RunFolder

pytestmark = pytest.mark.slow
SCRIPT = "accelerate_loop.py"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("accelerate")
    with python_with(folder, "accelerate", "holdfast.integrations.accelerate") as warm:
        yield Trained(warm, SCRIPT, folder)


@pytest.fixture(scope="module")
def after_a_kill(trained: Trained) -> Resumed:
    return resumed_after_a_kill(trained, "saved/step_16/model.safetensors")


def test_accelerate_resumes_in_the_middle_of_an_epoch_bit_for_bit(after_a_kill: Resumed) -> None:
    assert after_a_kill.resumed == after_a_kill.whole and after_a_kill.whole["step"] == 30


def test_accelerate_resumes_from_the_checkpoint_before_a_torn_one(after_a_kill: Resumed) -> None:
    assert after_a_kill.origin == "saved/step_12"


def test_the_accelerate_tracker_joins_the_run_that_is_there_or_starts_one(after_a_kill: Resumed) -> None:
    assert after_a_kill.trained.runs("uninterrupted") == ["all"] and after_a_kill.trained.runs("killed") == ["acc", "acc-2"]
    assert after_a_kill.joined.run.info()["settings"] == {"epochs": 3}


def test_what_accelerate_logs_has_its_steps_and_epochs(after_a_kill: Resumed) -> None:
    assert steps_and_epochs(after_a_kill.joined, "val_loss") == [(10, 0), (20, 1), (30, 2)]


def test_accelerate_checkpoints_are_verified_and_listed(after_a_kill: Resumed) -> None:
    names = [f"step_{step}" for step in range(4, 30, 4)]
    assert sorted(verified(after_a_kill.joined)) == sorted(names)
    assert after_a_kill.trained.listed("uninterrupted", "all") == dict.fromkeys(names, "clean")


def test_accelerate_steps_are_counted_on_after_a_resume(after_a_kill: Resumed) -> None:
    own = after_a_kill.own("acc-2")
    assert own.steps["step"] == [*range(12, 30)] and own.findings == []


def test_patience_stops_through_the_trigger_and_saves_with_save_state_exactly(trained: Trained) -> None:
    folder = trained.folder / "stopped"
    folder.mkdir()
    words = ("--policy", "heal", "--patience", "3", "--name", "a", PYTHON, str(VICTIMS / SCRIPT), "--epochs", "4000")
    done = run(folder, *words, "--save-every", "100000")
    assert done.returncode == 0 and "has not improved for 3 evaluations" in done.stderr, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert end["stopped"], "the loop has ended by itself"
    (saved,) = (folder / "saved").iterdir()  # only the newest that `heal` asked for is kept
    assert saved.name in verified(trained.recorded("stopped", "a"))
    epochs = str(end["epoch"] + 2)
    _, whole = trained.end_of("not-stopped", "--epochs", epochs, "--save-every", "100000")
    _, resumed = trained.end_of("stopped", "--resume", "--epochs", epochs, "--save-every", "100000")
    assert resumed.pop("from") == f"saved/{saved.name}" and whole.pop("from") is None and resumed == whole


def test_a_roll_back_leaves_the_counters_of_an_accelerate_loop_right(tmp_path: Path) -> None:
    words = ("--policy", "heal", "--name", "a", PYTHON, str(VICTIMS / SCRIPT), "--epochs", "40", "--lr-at", "150")
    done = run(tmp_path, *words, "--save-every", "100000")
    assert done.returncode == 0, done.stderr
    assert "roll-back" in [row["action"] for row in RunFolder.open(tmp_path / "runs/a").journal if row.get("state") == "done"]
    assert '"step": 400, "epoch": 40, "stopped": false' in done.stdout
