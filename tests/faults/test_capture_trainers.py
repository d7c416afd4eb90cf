"""Scripts on Hugging Face's Trainer, Lightning and Accelerate, unmodified, with the real packages."""

from __future__ import annotations

import pytest
from watched_training import Trainings, assert_bit_equal, assert_steps_are_the_scripts, recordings_of


def test_a_hugging_face_trainer(trainings: Trainings) -> None:
    training = trainings("hf_trainer")
    assert_bit_equal(training)
    logs = training.alone["logs"]
    steps_said = [entry for entry in logs if "grad_norm" in entry]
    evaluations_said = [entry for entry in logs if "eval_loss" in entry]
    for recorded in recordings_of(training):
        steps = recorded.steps
        assert recorded.names == ["rank-0"]
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
    assert set(training.recorded_in_full.table("parameters")["name"]) == set(training.alone["names"])
    assert {"transformer.h.0.attn", "(model)"} <= set(training.recorded_in_full.table("modules")["module"])


def test_a_lightning_trainer(trainings: Trainings) -> None:
    training = trainings("lightning_fit")
    assert_bit_equal(training)
    assert_steps_are_the_scripts(training)
    for recorded in recordings_of(training):
        assert recorded.names == ["rank-0"]
        assert recorded.steps["backwards"] == [1] * 20
        assert recorded.steps["clip_norm"] == [0.5] * 20
        evaluations = recorded.table("evaluations")
        assert evaluations["step"] == [5, 10, 15, 20]
        assert evaluations["value"] == pytest.approx(training.alone["validation"], rel=1e-5)
        assert evaluations["samples"] == [25] * 4
    assert set(training.recorded_in_full.table("parameters")["name"]) == set(training.alone["names"])


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
