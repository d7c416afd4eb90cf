"""A short version of `make drills`: faults in trainings of the drill suite under `heal`, and each training without a fault."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from holdfast.drills.score import Score
from holdfast.drills.suite import SuiteResult, run_suite

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks/drill_trainings"))
from house import training

COURSE = {"digits_cnn": ("fp16-overflow",), "digits_mlp": ("nan-batch", "process-killed", "deadlock")}
Drilled = Callable[[str], SuiteResult]

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]  # tests/unit/drills/test_course.py drills a shorter training
each_training = pytest.mark.parametrize("name", COURSE)


@pytest.fixture(scope="module")
def drilled(tmp_path_factory: pytest.TempPathFactory) -> Drilled:
    """Runs the course of a training once: the control, then its faults side by side."""

    @cache
    def run(name: str) -> SuiteResult:
        folder = tmp_path_factory.mktemp(name)
        return run_suite([training(name)], COURSE[name], policies=["heal"], seeds=[0], jobs=2, folder=folder)

    return run


def scores_of(result: SuiteResult, name: str) -> list[Score]:
    assert {score.fault for score in result.scores} == set(COURSE[name])
    return result.scores


@each_training
def test_an_injected_fault_is_seen_and_its_cause_is_named_first(name: str, drilled: Drilled) -> None:
    for score in scores_of(drilled(name), name):
        assert score.injected, score.why_not
        assert score.seen, score
        assert score.cause_right, score


@each_training
def test_a_run_that_can_be_saved_ends_as_good_as_without_the_fault(name: str, drilled: Drilled) -> None:
    for score in scores_of(drilled(name), name):
        assert score.to_survive
        assert score.survived, f"{score.why_not_survived}: {score}"


@each_training
def test_the_same_training_without_a_fault_is_left_alone(name: str, drilled: Drilled) -> None:
    (control,) = drilled(name).controls
    assert (control.training, control.false_alarms, control.actions) == (name, (), ())
