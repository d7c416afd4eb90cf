"""Evaluation phases are told from training, and their losses are recorded without help."""

from __future__ import annotations

import pytest
from watched_training import Trainings, assert_bit_equal, assert_steps_are_the_scripts, recordings_of


@pytest.mark.parametrize(
    "how",
    [
        "function",
        "module",
        "mse",
        "sum",
        "kept",
    ],
)
def test_validation_losses_are_the_mean_over_their_samples(trainings: Trainings, how: str) -> None:
    training = trainings("evaluations", how)
    assert_bit_equal(training)
    assert_steps_are_the_scripts(training)
    for recorded in recordings_of(training):
        rows = recorded.table("evaluations")
        assert rows["value"] == pytest.approx(training.alone["validation"])
        assert rows["step"] == [5, 10, 15]  # the last one came after the last step
        assert rows["samples"] == [25] * 3
        assert set(zip(rows["split"], rows["name"], strict=True)) == {("val", "loss")}


def test_an_evaluation_that_forgot_no_grad_is_no_training(trainings: Trainings) -> None:
    training = trainings("evaluations", "without_no_grad")
    assert_bit_equal(training)
    assert_steps_are_the_scripts(training)


@pytest.mark.parametrize("how", ["function", "module", "mse", "sum", "without_no_grad"])
def test_in_training_the_loss_functions_are_the_originals(trainings: Trainings, how: str) -> None:
    training = trainings("evaluations", how)
    assert set(training.watched.story["original"]) == {True}
    assert set(training.full.story["original"]) == {True}


@pytest.mark.parametrize("what", ["norms", "body"])
def test_a_part_frozen_in_evaluation_mode_is_no_evaluation(trainings: Trainings, what: str) -> None:
    training = trainings("frozen_parts", what)
    assert_bit_equal(training)
    assert_steps_are_the_scripts(training)
    for recorded in recordings_of(training):
        assert len(recorded.table("evaluations")) == 0
        assert all(waited > 0 for waited in recorded.steps["data_seconds"])
        assert all(seconds > 0.005 for seconds in recorded.steps["step_seconds"][1:])  # the script sleeps that long
