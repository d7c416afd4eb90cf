"""Scripts on Hugging Face's Trainer, Lightning and Accelerate, unmodified, with the real packages."""

from __future__ import annotations

import pytest
from watched_training import Recorded, Training, Trainings, assert_bit_equal, difference, recordings_of


def recorded_of(training: Training) -> Recorded:
    """What was recorded as by default, of a script that computed what it computes alone; those packages take long to import."""
    assert difference(training.alone, training.watched.story) is None
    assert training.recorded.findings == []
    assert training.recorded.names == ["rank-0"]
    return training.recorded


def test_a_hugging_face_trainer(trainings: Trainings) -> None:
    training = trainings("hf_trainer")
    recorded = recorded_of(training)
    logs = training.alone["logs"]
    steps_said = [entry for entry in logs if "grad_norm" in entry]
    evaluations_said = [entry for entry in logs if "eval_loss" in entry]
    steps = recorded.steps
    assert len(steps) == len(steps_said) == 15
    assert steps["backwards"] == [2] * 15
    assert steps["grad_norm"] == pytest.approx([entry["grad_norm"] for entry in steps_said], rel=1e-4)
    assert steps["loss"] == pytest.approx([entry["loss"] for entry in steps_said], abs=1e-3)
    assert steps["lr"] == pytest.approx([entry["learning_rate"] for entry in steps_said])
    assert steps["clip_norm"] == [0.5] * 15
    assert steps["epoch"] == [0] * 5 + [1] * 5 + [2] * 5
    assert sum(steps["samples"]) == 120
    evaluations = recorded.table("evaluations")
    assert evaluations["step"] == [5, 10, 15]
    assert evaluations["value"] == pytest.approx([entry["eval_loss"] for entry in evaluations_said], rel=1e-3)
    assert set(recorded.table("parameters")["name"]) == set(training.alone["names"])
    assert {"transformer.h.0.attn", "(model)"} <= set(recorded.table("modules")["module"])


def test_a_lightning_trainer(trainings: Trainings) -> None:
    training = trainings("lightning_fit")
    recorded, story = recorded_of(training), training.alone
    steps = recorded.steps
    assert steps["loss"] == pytest.approx(story["losses"], rel=1e-6)
    assert steps["grad_norm"] == pytest.approx(story["norms"], rel=1e-5)
    assert steps["lr"] == pytest.approx(story["lr"])
    assert (steps["epoch"], steps["samples"]) == (story["epochs"], story["samples"])
    assert steps["backwards"] == [1] * 20
    assert steps["clip_norm"] == [0.5] * 20
    evaluations = recorded.table("evaluations")
    assert evaluations["step"] == [5, 10, 15, 20]
    assert evaluations["value"] == pytest.approx(story["validation"], rel=1e-5)
    assert evaluations["samples"] == [25] * 4
    assert set(recorded.table("parameters")["name"]) == set(story["names"])


@pytest.mark.slow
def test_an_accelerate_loop_with_accumulation(trainings: Trainings) -> None:
    training = trainings("accelerate_loop")
    assert_bit_equal(training)
    for recorded in recordings_of(training):
        steps = recorded.steps
        assert recorded.names == ["rank-0"]
        for kept, column in {"backwards": "backwards", "epochs": "epoch"}.items():
            assert steps[column] == training.alone[kept]
        assert steps["loss"] == pytest.approx(training.alone["losses"])
        assert steps["grad_norm"] == pytest.approx(training.alone["norms"], rel=1e-5)
        assert steps["lr"] == pytest.approx(training.alone["lr"])
        assert steps["clip_norm"] == [0.5] * len(steps)
        assert sum(steps["samples"]) == 4 * 70  # Accelerate draws one batch ahead, so a step may count its neighbour's
