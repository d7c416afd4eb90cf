"""Models and gradients of unusual kinds, and trainings in which something goes wrong."""

from __future__ import annotations

import math

import pytest
from watched_training import Training, Trainings, assert_bit_equal, assert_steps_are_the_scripts, recordings_of


@pytest.mark.parametrize("kind", ["inplace", "sparse", "experts", "checkpoint", "complex"])
def test_unusual_gradients_are_read_rightly(trainings: Trainings, kind: str) -> None:
    training = trainings("odd_models", kind)
    assert_bit_equal(training)
    assert_steps_are_the_scripts(training)
    for recorded in recordings_of(training):
        assert recorded.steps["backwards"] == [1] * 20


@pytest.mark.parametrize("kind", ["inplace", "sparse", "experts", "checkpoint", "complex"])
def test_each_parameter_that_has_a_gradient_is_listed_with_its_own_norm(trainings: Trainings, kind: str) -> None:
    training = trainings("odd_models", kind)
    table = training.recorded_in_full.table("parameters")
    for step in range(3, 20):
        rows = table.where(step=step)
        truth = training.alone["each"][step]
        assert [row["name"] for row in rows] == list(truth)
        assert [row["grad_norm"] for row in rows] == pytest.approx(list(truth.values()), rel=1e-4, abs=1e-9)


def test_modules_with_in_place_operations_behind_them_are_timed(trainings: Trainings) -> None:
    rows = trainings("odd_models", "inplace").recorded_in_full.table("modules").where(step=10)
    for stage in ("forward", "backward"):
        assert {row["module"] for row in rows if row["stage"] == stage} >= {"(model)", "first", "second", "third", "elu"}


def test_a_model_can_be_copied_and_pickled_at_any_step_and_the_copy_is_clean(trainings: Trainings) -> None:
    training = trainings("copies")
    assert_bit_equal(training)  # the story holds the sizes of the pickles and the number of hooks on the copy
    assert_steps_are_the_scripts(training)


def test_parameters_in_no_module_and_batches_from_no_loader(trainings: Trainings) -> None:
    training = trainings("without_modules")
    assert_bit_equal(training)
    assert_steps_are_the_scripts(training)
    for recorded in recordings_of(training):
        assert recorded.names == ["rank-0"]
        assert recorded.steps["clip_norm"] == [1.0] * 20
        for missing in ("epoch", "samples", "data_seconds"):
            assert set(recorded.steps[missing]) == {None}
        assert set(recorded.table("parameters")["name"]) == {None}


@pytest.fixture
def nan(trainings: Trainings) -> Training:
    return trainings("mishaps", "nan")


def test_a_nan_loss_is_recorded_as_nan_and_is_not_missing(nan: Training) -> None:
    assert_bit_equal(nan)
    for recorded in recordings_of(nan):
        losses = recorded.steps["loss"]
        assert [n for n, loss in enumerate(losses) if math.isnan(loss)] == [5, 6]
        assert losses[:5] + losses[7:] == nan.alone["losses"][:5] + nan.alone["losses"][7:]


def test_a_nan_gradient_is_counted_and_its_parameter_named(nan: Training) -> None:
    truth = {name: count for name, count in nan.alone["bad"][0].items() if count}
    assert truth
    for recorded in recordings_of(nan):
        assert recorded.steps["non_finite"] == [len(truth) if step == 5 else 0 for step in range(20)]
        assert math.isnan(recorded.steps["grad_norm"][5])
        rows = recorded.table("parameters").where(step=5)
        assert {row["name"]: row["non_finite"] for row in rows if row["non_finite"]} == truth


def test_a_step_that_raises_is_no_step_and_the_next_ones_are(trainings: Trainings) -> None:
    training = trainings("mishaps", "step_raises")
    assert_bit_equal(training)
    made = [n for n, stepped in enumerate(training.alone["stepped"]) if stepped]
    assert len(made) == 18
    for recorded in recordings_of(training):
        assert recorded.steps["step"] == list(range(18))
        assert recorded.steps["loss"] == pytest.approx([training.alone["losses"][n] for n in made])
        assert recorded.steps["grad_norm"] == pytest.approx([training.alone["norms"][n] for n in made], rel=1e-5)


def test_after_clipping_that_raised_the_next_norm_is_the_next_steps(trainings: Trainings) -> None:
    training = trainings("mishaps", "clip_raises")
    assert_bit_equal(training)
    made = [n for n, stepped in enumerate(training.alone["stepped"]) if stepped]
    assert len(made) == 19
    for recorded in recordings_of(training):
        assert recorded.steps["grad_norm"] == pytest.approx([training.alone["norms"][n] for n in made], rel=1e-5)


def test_backward_on_something_that_is_no_scalar_leaves_the_loss_missing(trainings: Trainings) -> None:
    training = trainings("mishaps", "not_scalar")
    assert_bit_equal(training)
    for recorded in recordings_of(training):
        assert recorded.steps["loss"] == [None] * 20
        assert recorded.steps["grad_norm"] == pytest.approx(training.alone["norms"], rel=1e-5)
