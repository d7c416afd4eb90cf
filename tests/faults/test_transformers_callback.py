"""The Hugging Face callback: joins or starts a run, records evaluations, lists checkpoints, stops the Trainer's way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_run import PYTHON, VICTIMS, run
from trained_with import KILLED, Trained, cut_short, python_with, verified

from holdfast.signals.run_folder import RunFolder

pytestmark = pytest.mark.slow  # transformers takes ten seconds to import
SCRIPT = "hugging_face_trainer.py"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("transformers")
    with python_with(folder, "transformers.trainer", "holdfast.integrations.transformers") as warm:
        yield Trained(warm, SCRIPT, folder)


def test_a_resume_in_the_middle_of_an_epoch_is_bit_equal_although_the_newest_checkpoint_is_torn(trained: Trained) -> None:
    _, whole = trained.end_of("uninterrupted", joins="all")
    code, _ = trained.end_of("killed", "--kill-at", "17")
    assert code == KILLED
    cut_short(trained.folder / "killed/saved/checkpoint-16/model.safetensors")
    _, resumed = trained.end_of("killed", "--resume")
    assert resumed.pop("from") == "saved/checkpoint-12" and whole.pop("from") is None
    assert resumed == whole and whole["step"] == 30 and whole["epoch"] == 3.0

    joined = trained.recorded("uninterrupted", "all")
    assert trained.runs("uninterrupted") == ["all"], "the callback has joined the run that is there"
    assert joined.names == ["rank-0"] and len(joined.steps) == 30
    evaluations = joined.table("evaluations").where(name="eval_loss", split="val")
    assert [(row["step"], row["epoch"]) for row in evaluations] == [(10, 0), (20, 1), (30, 2)]
    names = [f"checkpoint-{step}" for step in (*range(4, 30, 4), 30)]
    assert sorted(verified(joined)) == sorted(names)
    assert trained.listed("uninterrupted", "all") == dict.fromkeys(names, "clean")

    assert trained.runs("killed") == ["hf", "hf-2"], "without `holdfast run` the callback starts a run"
    own = trained.recorded("killed", "hf-2")
    assert own.steps["step"] == [*range(12, 30)] and own.steps["epoch"] == [1] * 8 + [2] * 10
    (row,) = [row for row in own.run.journal if row.get("event") == "resumed"]
    assert row["at"] == 12 and row["optimizer"] == "loaded"
    assert own.findings == []


def test_patience_stops_through_trainer_control_and_saves_by_the_trainers_means(tmp_path: Path) -> None:
    words = ("--policy", "heal", "--patience", "3", "--name", "a", PYTHON, str(VICTIMS / SCRIPT))
    done = run(tmp_path, *words, "--epochs", "300", "--save-every", "100000", env=OFFLINE)
    assert done.returncode == 0, done.stderr
    assert "has not improved for 3 evaluations" in done.stderr
    assert '"stopped": true' in done.stdout, "the script went on after `train`"
    saved = {path.name for path in (tmp_path / "saved").glob("checkpoint-*")}
    journal = list(RunFolder.open(tmp_path / "runs/a").journal)
    assert saved and saved == {Path(row["path"]).name for row in journal if row.get("event") == "verified"}
    stops = [row for row in journal if row.get("action") == "stop" and row.get("state") == "done"]
    assert len(stops) == 1 and f'"step": {stops[0]["at"]}' in done.stdout, "the Trainer stops after the step in progress"


def test_a_roll_back_leaves_the_trainers_counters_right(tmp_path: Path) -> None:
    words = ("--policy", "heal", "--name", "a", PYTHON, str(VICTIMS / SCRIPT), "--epochs", "40", "--lr-at", "150")
    done = run(tmp_path, *words, "--save-every", "100000", env=OFFLINE)
    assert done.returncode == 0, done.stderr
    actions = [row["action"] for row in RunFolder.open(tmp_path / "runs/a").journal if row.get("state") == "done"]
    assert "roll-back" in actions
    assert '"step": 400, "epoch": 40.0' in done.stdout
