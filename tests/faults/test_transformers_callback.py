"""The Hugging Face callback: joins or starts a run, records evaluations, lists checkpoints, stops the Trainer's way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_run import PYTHON, VICTIMS, run
from trained_with import Resumed, Trained, python_with, resumed_after_a_kill, steps_and_epochs, verified

from holdfast.signals.run_folder import RunFolder

pytestmark = pytest.mark.slow  # transformers takes ten seconds to import
SOON = {"HOLDFAST_BACK_OFF": "0.1"}
SCRIPT = "hugging_face_trainer.py"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("transformers")
    with python_with(folder, "transformers.trainer", "holdfast.integrations.transformers") as warm:
        yield Trained(warm, SCRIPT, folder)


@pytest.fixture(scope="module")
def after_a_kill(trained: Trained) -> Resumed:
    return resumed_after_a_kill(trained, "saved/checkpoint-16/model.safetensors")


def test_the_hugging_face_trainer_resumes_in_the_middle_of_an_epoch_bit_for_bit(after_a_kill: Resumed) -> None:
    assert after_a_kill.resumed == after_a_kill.whole and after_a_kill.whole["step"] == 30


def test_the_hugging_face_trainer_resumes_from_the_checkpoint_before_a_torn_one(after_a_kill: Resumed) -> None:
    assert after_a_kill.origin == "saved/checkpoint-12"


def test_the_hugging_face_callback_joins_the_run_that_is_there_or_starts_one(after_a_kill: Resumed) -> None:
    assert after_a_kill.trained.runs("uninterrupted") == ["all"] and after_a_kill.trained.runs("killed") == ["hf", "hf-2"]
    assert after_a_kill.joined.names == ["rank-0"] and len(after_a_kill.joined.steps) == 30


def test_hugging_face_metrics_have_its_steps_and_epochs(after_a_kill: Resumed) -> None:
    assert steps_and_epochs(after_a_kill.joined, "eval_loss") == [(10, 0), (20, 1), (30, 2)]


def test_hugging_face_checkpoints_are_verified_and_listed(after_a_kill: Resumed) -> None:
    names = [f"checkpoint-{step}" for step in (*range(4, 30, 4), 30)]
    assert sorted(verified(after_a_kill.joined)) == sorted(names)
    assert after_a_kill.trained.listed("uninterrupted", "all") == dict.fromkeys(names, "clean")


def test_hugging_face_steps_are_counted_on_after_a_resume(after_a_kill: Resumed) -> None:
    own = after_a_kill.own("hf-2")
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


def test_the_hugging_face_trainer_is_restarted_within_an_epoch_and_ends_with_the_same_weights(
    after_a_kill: Resumed, tmp_path: Path
) -> None:
    words = ("--policy", "heal", "--name", "a", PYTHON, str(VICTIMS / SCRIPT), "--kill-at", "17")
    done = run(tmp_path, *words, env=OFFLINE | SOON)
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert end.pop("from") is None and end == after_a_kill.whole
