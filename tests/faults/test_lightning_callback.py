"""The Lightning callback: joins or starts a run, records evaluations, lists checkpoints, resumes exactly, stops its way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_run import PYTHON, VICTIMS, run
from trained_with import KILLED, Resumed, Trained, python_with, resumed_after_a_kill, steps_and_epochs, verified
from watched_training import Recorded

from holdfast.signals.run_folder import RunFolder

SOON = {"HOLDFAST_BACK_OFF": "0.1"}
SCRIPT = "lightning_trainer.py"
STEPS_PER_EPOCH = 10


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("lightning")
    with python_with(folder, "lightning.pytorch", "holdfast.integrations.lightning") as warm:
        yield Trained(warm, SCRIPT, folder)


@pytest.fixture(scope="module")
def after_a_kill(trained: Trained) -> Resumed:
    return resumed_after_a_kill(trained, "saved/epoch=1-step=16.ckpt")


def test_lightning_resumes_in_the_middle_of_an_epoch_bit_for_bit(after_a_kill: Resumed) -> None:
    assert after_a_kill.resumed == after_a_kill.whole and after_a_kill.whole["step"] == 30


def test_lightning_resumes_from_the_checkpoint_before_a_torn_one(after_a_kill: Resumed) -> None:
    assert after_a_kill.origin == "saved/epoch=1-step=12.ckpt"


def test_the_lightning_callback_joins_the_run_that_is_there_or_starts_one(after_a_kill: Resumed) -> None:
    assert after_a_kill.trained.runs("uninterrupted") == ["all"] and after_a_kill.trained.runs("killed") == ["lit", "lit-2"]
    assert after_a_kill.joined.names == ["rank-0"] and len(after_a_kill.joined.steps) == 30


def test_lightning_metrics_have_its_steps_and_epochs(after_a_kill: Resumed) -> None:
    assert steps_and_epochs(after_a_kill.joined, "val_acc") == [(10, 0), (20, 1), (30, 2)]
    assert steps_and_epochs(after_a_kill.own("lit-2"), "val_acc") == [(20, 1), (30, 2)]


def test_lightning_checkpoints_are_verified_and_listed(after_a_kill: Resumed) -> None:
    names = [f"epoch={(step - 1) // STEPS_PER_EPOCH}-step={step}.ckpt" for step in range(4, 30, 4)]
    assert sorted(verified(after_a_kill.joined)) == sorted(names)
    assert after_a_kill.trained.listed("uninterrupted", "all") == dict.fromkeys(names, "clean")


def test_lightning_steps_are_counted_on_after_a_resume(after_a_kill: Resumed) -> None:
    own = after_a_kill.own("lit-2")
    assert own.steps["step"] == [*range(12, 30)] and own.steps["epoch"] == [1] * 8 + [2] * 10
    (row,) = [row for row in own.run.journal if row.get("event") == "resumed"]
    assert row["at"] == 12 and row["optimizer"] == "loaded"
    assert own.findings == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--save-every", "0"), ("--workers", "2")], ids=["after an epoch", "with workers"])
def test_lightning_resumes_after_an_epoch_and_with_workers_bit_for_bit(trained: Trained, words: tuple[str, ...]) -> None:
    place = "-".join(words).strip("-")
    _, whole = trained.end_of(f"{place}-whole", *words)
    assert trained.end_of(place, "--kill-at", "13", *words)[0] == KILLED
    _, resumed = trained.end_of(place, "--resume", *words)
    assert resumed.pop("from") is not None and whole.pop("from") is None and resumed == whole


@pytest.mark.slow
def test_patience_stops_through_should_stop_and_saves_by_lightnings_means(tmp_path: Path) -> None:
    words = ("--policy", "heal", "--patience", "3", "--name", "a", PYTHON, str(VICTIMS / SCRIPT), "--epochs", "400")
    done = run(tmp_path, *words, "--save-every", "0")
    assert done.returncode == 0, done.stderr
    assert "val_loss has not improved for 3 evaluations" in done.stderr
    assert '"stopped": true' in done.stdout, "the script went on after `fit`"
    steps = Recorded(RunFolder.open(tmp_path / "runs/a")).steps["step"]
    assert json.loads(done.stdout.splitlines()[-1])["step"] == len(steps), "Lightning has counted the updates that were made"
    saved = sorted((tmp_path / "saved").glob("holdfast-step=*.ckpt"))
    assert len(saved) == 1, "only the newest that `heal` asked for is kept"


@pytest.mark.slow
def test_a_roll_back_leaves_lightnings_counters_right(tmp_path: Path) -> None:
    words = ("--policy", "heal", "--restarts", "0", "--name", "a")  # else the training is started again instead
    done = run(tmp_path, *words, PYTHON, str(VICTIMS / SCRIPT), "--epochs", "40", "--lr-at", "150", "--save-every", "0")
    assert done.returncode == 0, done.stderr
    actions = [row["action"] for row in RunFolder.open(tmp_path / "runs/a").journal if row.get("state") == "done"]
    assert "roll-back" in actions
    assert '"step": 400, "epoch": 40, "stopped": false' in done.stdout


@pytest.mark.slow
def test_lightning_is_restarted_within_an_epoch_and_ends_with_the_same_weights(after_a_kill: Resumed, tmp_path: Path) -> None:
    words = ("--policy", "heal", "--name", "a", PYTHON, str(VICTIMS / SCRIPT), "--kill-at", "17")
    done = run(tmp_path, *words, env=SOON)
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert end.pop("from") is None and end == after_a_kill.whole
