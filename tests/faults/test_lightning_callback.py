"""The Lightning callback: joins or starts a run, records evaluations, lists checkpoints, resumes exactly, stops its way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_run import PYTHON, VICTIMS, run
from trained_with import KILLED, Trained, cut_short, python_with, verified

from holdfast.signals.run_folder import RunFolder

SCRIPT = "lightning_trainer.py"
STEPS_PER_EPOCH = 10


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("lightning")
    with python_with(folder, "lightning.pytorch", "holdfast.integrations.lightning") as warm:
        yield Trained(warm, SCRIPT, folder)


def test_a_resume_in_the_middle_of_an_epoch_is_bit_equal_although_the_newest_checkpoint_is_torn(trained: Trained) -> None:
    _, whole = trained.end_of("uninterrupted", joins="all")
    code, _ = trained.end_of("killed", "--kill-at", "17")
    assert code == KILLED
    saved = trained.folder / "killed/saved"
    cut_short(saved / "epoch=1-step=16.ckpt")
    _, resumed = trained.end_of("killed", "--resume")
    assert resumed.pop("from") == "saved/epoch=1-step=12.ckpt" and whole.pop("from") is None
    assert resumed == whole and whole["step"] == 30 and whole["epoch"] == 3

    joined = trained.recorded("uninterrupted", "all")
    assert trained.runs("uninterrupted") == ["all"], "the callback has joined the run that is there"
    assert joined.names == ["rank-0"] and len(joined.steps) == 30
    evaluations = joined.table("evaluations").where(name="val_acc", split="val")
    assert [(row["step"], row["epoch"]) for row in evaluations] == [(10, 0), (20, 1), (30, 2)]
    names = [f"epoch={(step - 1) // STEPS_PER_EPOCH}-step={step}.ckpt" for step in range(4, 30, 4)]
    assert sorted(verified(joined)) == sorted(names)
    assert trained.listed("uninterrupted", "all") == dict.fromkeys(names, "clean")

    assert trained.runs("killed") == ["lit", "lit-2"], "without `holdfast run` the callback starts a run"
    own = trained.recorded("killed", "lit-2")
    assert own.steps["step"] == [*range(12, 30)] and own.steps["epoch"] == [1] * 8 + [2] * 10
    (row,) = [row for row in own.run.journal if row.get("event") == "resumed"]
    assert row["at"] == 12 and row["optimizer"] == "loaded"
    assert own.findings == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--save-every", "0"), ("--workers", "2")], ids=["after an epoch", "with workers"])
def test_other_resumes_are_bit_equal(trained: Trained, words: tuple[str, ...]) -> None:
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
    saved = sorted((tmp_path / "saved").glob("holdfast-step=*.ckpt"))
    assert len(saved) == 1, "only the newest that `heal` asked for is kept"


@pytest.mark.slow
def test_a_roll_back_leaves_lightnings_counters_right(tmp_path: Path) -> None:
    words = ("--policy", "heal", "--name", "a", PYTHON, str(VICTIMS / SCRIPT), "--epochs", "40", "--lr-at", "150")
    done = run(tmp_path, *words, "--save-every", "0")
    assert done.returncode == 0, done.stderr
    actions = [row["action"] for row in RunFolder.open(tmp_path / "runs/a").journal if row.get("state") == "done"]
    assert "roll-back" in actions
    assert '"step": 400, "epoch": 40, "stopped": false' in done.stdout
