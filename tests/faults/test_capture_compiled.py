"""Compiled models and optimizers: recorded, and not compiled once more because of it."""

from __future__ import annotations

import pytest
from watched_training import Trainings, assert_bit_equal

SLOW = [pytest.param(how, marks=pytest.mark.slow) for how in ("in_place", "part", "function", "loss_inside")]


@pytest.fixture(autouse=True, scope="module")
def _compiler(trainings: Trainings) -> None:
    """Importing the compiler takes longer than compiling."""
    trainings.warm.load("torch._functorch.aot_autograd", "torch._inductor.compile_fx")


@pytest.mark.parametrize("how", ["module", pytest.param("optimizer", marks=pytest.mark.slow), *SLOW])
def test_what_is_compiled_is_not_compiled_again_and_computes_the_same(trainings: Trainings, how: str) -> None:
    training = trainings("compiled", how)
    assert training.alone["graphs"]["unique_graphs"] > 0
    assert_bit_equal(training)  # the story holds the counts of graphs, graph breaks and recompilations


@pytest.mark.parametrize("how", ["module", *SLOW])
def test_a_compiled_model_is_recorded_like_any_other(trainings: Trainings, how: str) -> None:
    training = trainings("compiled", how)
    for recorded in (training.recorded, training.recorded_in_full):
        assert recorded.steps["loss"] == pytest.approx(training.alone["losses"])
        assert recorded.steps["grad_norm"] == pytest.approx(training.alone["norms"], rel=1e-5)
        assert recorded.steps["epoch"] == training.alone["epochs"]
        assert recorded.steps["samples"] == training.alone["samples"]
    names = set(training.recorded_in_full.table("parameters")["name"])
    assert names == {"body.1.weight", "body.1.bias", "head.weight", "head.bias"}


def test_a_model_compiled_as_a_whole_is_timed_as_a_whole(trainings: Trainings) -> None:
    assert set(trainings("compiled", "module").recorded_in_full.table("modules")["module"]) == {"(model)"}
    assert set(trainings("compiled", "part").recorded_in_full.table("modules")["module"]) == {"(model)", "body", "head"}
