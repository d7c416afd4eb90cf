"""Keras 3 on torch, whose optimizers are not torch's: with the callback and without it."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import PYTHON, VICTIMS, environment, run, typed
from trained_with import cut_short, verified
from watched_training import Recorded

from holdfast.signals.run_folder import RunFolder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed: pip install keras"),
]
SCRIPT = str(VICTIMS / "keras_trainer.py")
STEPS, STEPS_PER_EPOCH = 32, 8


def alone(folder: Path, *words: str) -> dict[str, Any]:
    """What the script prints without `holdfast run`."""
    command = [sys.executable, SCRIPT, *words]
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def under_run(folder: Path, *words: str, policy: str = "observe") -> tuple[dict[str, Any], Recorded]:
    """What it prints under `holdfast run`, and what is recorded."""
    done = run(folder, "--name", "a", "--policy", policy, PYTHON, SCRIPT, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), Recorded(RunFolder.open(folder / "runs/a"))


def actions(recorded: Recorded) -> list[str]:
    return [row["action"] for row in recorded.run.journal if row.get("state") == "done"]


def skipped_in_each_epoch(recorded: Recorded) -> list[int]:
    steps = zip(recorded.steps["step"], recorded.steps["skipped"], strict=True)
    skipped = [step for step, was_skipped in steps if was_skipped]
    return [sum(step // STEPS_PER_EPOCH == epoch for step in skipped) for epoch in range(STEPS // STEPS_PER_EPOCH)]


def test_the_callback_records_every_step_and_evaluation_and_changes_no_bit(tmp_path: Path) -> None:
    without = alone(tmp_path, "--without")
    assert alone(tmp_path) == without, "in a plain script it starts a run, and computes the same"
    recorded = Recorded(RunFolder.open(tmp_path / "runs/keras"))
    steps = recorded.steps
    assert steps["step"] == [*range(STEPS)] and steps["epoch"] == [step // STEPS_PER_EPOCH for step in range(STEPS)]
    assert steps["lr"] == pytest.approx([0.01] * STEPS) and steps["samples"] == [16] * STEPS
    assert all(math.isfinite(value) for name in ("loss", "grad_norm") for value in steps[name])
    rows = recorded.table("evaluations").where(name="val_loss", split="val")
    assert [(row["step"], row["epoch"]) for row in rows] == [(8, 0), (16, 1), (24, 2), (32, 3)]
    assert rows[-1]["value"] == pytest.approx(without["loss"])
    saved = sorted(path.name for path in (tmp_path / "runs/keras/checkpoints").glob("step-*"))
    assert saved == ["step-000016", "step-000024", "step-000032"]


def test_the_callback_joins_the_run_and_a_schedule_of_keras_is_recorded(tmp_path: Path) -> None:
    _, recorded = under_run(tmp_path, "--schedule")
    assert [path.name for path in (tmp_path / "runs").iterdir() if not path.is_symlink()] == ["a"]
    assert recorded.steps["lr"] == pytest.approx([0.01 * 0.5 ** (step / 10) for step in range(STEPS)], rel=1e-5)


def test_a_bad_batch_is_skipped_as_if_it_had_not_been_there(tmp_path: Path) -> None:
    end, recorded = under_run(tmp_path, "--nan-at", "3", "--policy", "guard", policy="guard")
    assert skipped_in_each_epoch(recorded) == [1, 1, 1, 1]
    assert end["finite"], "weights, moments and the statistics of BatchNormalization"
    assert end["step"] == STEPS - 4, "Keras counts the updates that were made"


def test_heal_rolls_back_and_keras_goes_on_to_its_last_epoch(tmp_path: Path) -> None:
    end, recorded = under_run(tmp_path, "--epochs", "60", "--lr-at", "30", policy="heal")
    assert "roll-back" in actions(recorded)
    assert end["epoch"] == 60 and end["finite"] and end["loss"] < 1.0


def test_a_killed_keras_training_is_restarted_after_its_last_epoch_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    done = run(tmp_path, "--policy", "heal", "--name", "a", PYTHON, SCRIPT, "--kill-at", "2", env={"HOLDFAST_BACK_OFF": "0.1"})
    assert done.returncode == 0, done.stderr
    (tmp_path / "alone").mkdir()
    assert json.loads(done.stdout.splitlines()[-1]) == alone(tmp_path / "alone", "--without")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a training that `heal` stopped, in which Keras saved by itself; and what it printed."""
    folder = tmp_path_factory.mktemp("keras")
    words = ("--patience", "3", "--name", "a", PYTHON, SCRIPT, "--epochs", "400", "--saves", "out/{epoch:03d}.keras")
    done = run(folder, "--policy", "heal", *words)
    assert done.returncode == 0 and "has not improved for 3 evaluations" in done.stderr, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


def test_patience_stops_through_stop_training_and_saves_by_keras_means(stopped: tuple[Path, dict[str, Any]]) -> None:
    folder, end = stopped
    steps = Recorded(RunFolder.open(folder / "runs/a")).steps["step"]
    assert end["epoch"] < 400, "the script went on after `fit`"
    assert end["step"] == len(steps), "Keras has counted the updates that were made"
    assert len(list((folder / "out").glob("holdfast-step=*.keras"))) == 1, "only the newest that `heal` asked for is kept"


def test_keras_checkpoints_are_verified_and_listed(stopped: tuple[Path, dict[str, Any]]) -> None:
    folder, end = stopped
    saved = {f"{epoch:03d}.keras" for epoch in range(1, end["epoch"] + 1)}
    assert saved <= set(verified(Recorded(RunFolder.open(folder / "runs/a"))))
    rows = {Path(row["path"]).name: row for row in json.loads(typed("checkpoints", "list", "a", "--json", folder=folder).stdout)}
    assert {rows[name]["state"] for name in (*saved, "latest.weights.h5")} == {"clean"}
    assert rows["002.keras"]["step"] == 2 * STEPS_PER_EPOCH


def test_a_damaged_keras_checkpoint_falls_back_to_the_one_before(stopped: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        shutil.copy2(stopped[0] / f"out/{epoch:03d}.keras", tmp_path)
    cut_short(tmp_path / "003.keras")
    load = "import keras, holdfast.integrations.keras as k; p = k.newest_checkpoint('.'); m = keras.saving.load_model(p)"
    words = [PYTHON, "-c", f"{load}; print(p, int(m.optimizer.iterations))"]
    env = environment(tmp_path, KERAS_BACKEND="torch")
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["002.keras", str(2 * STEPS_PER_EPOCH)], done.stderr
    assert "003.keras is not used: The archive is truncated or damaged" in done.stderr


def test_without_the_callback_loss_learning_rate_and_gradient_norm_are_recorded(tmp_path: Path) -> None:
    end, recorded = under_run(tmp_path, "--without")
    steps = recorded.steps
    assert end == alone(tmp_path, "--without")
    assert steps["step"] == [*range(STEPS)]
    assert sorted(set(steps["epoch"])) == [0, 1, 2, 3] and steps["epoch"] == sorted(steps["epoch"])
    assert steps["lr"] == pytest.approx([0.01] * STEPS)
    assert all(map(math.isfinite, steps["loss"])) and all(map(math.isfinite, steps["grad_norm"]))


def test_without_the_callback_a_schedule_of_keras_is_recorded(tmp_path: Path) -> None:
    _, recorded = under_run(tmp_path, "--without", "--schedule")
    assert recorded.steps["lr"] == pytest.approx([0.01 * 0.5 ** (step / 10) for step in range(STEPS)], rel=1e-5)


def test_without_the_callback_a_bad_update_is_skipped_too(tmp_path: Path) -> None:
    _, recorded = under_run(tmp_path, "--without", "--nan-at", "3", policy="guard")
    assert sum(skipped_in_each_epoch(recorded)) == 4
