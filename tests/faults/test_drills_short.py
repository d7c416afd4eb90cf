"""A short version of `make drills`: four faults in two trainings of the house course under `heal`, and each without a fault."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.drills.course import CourseResult, run_course
from holdfast.drills.score import ControlScore, Score

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks/drill_trainings"))
from house import training

COURSE = {
    "digits_mlp": ("nan-batch", "process-killed"),
    "digits_cnn": ("fp16-overflow", "deadlock"),
}
FAULTS = [code for codes in COURSE.values() for code in codes]

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[CourseResult]]:
    """The whole course, both trainings side by side."""

    def run(name: str) -> CourseResult:
        return run_course(
            [training(name)], COURSE[name], policies=["heal"], seeds=[0], folder=tmp_path_factory.mktemp(name), keep=True
        )

    with ThreadPoolExecutor(len(COURSE)) as pool:
        yield list(pool.map(run, COURSE))


@pytest.fixture(scope="module")
def scores(results: list[CourseResult]) -> dict[str, Score]:
    return {score.fault: score for result in results for score in result.scores}


@pytest.fixture(scope="module")
def controls(results: list[CourseResult]) -> list[ControlScore]:
    return [control for result in results for control in result.controls]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_was_put_in_is_seen_and_its_cause_is_named_first(fault: str, scores: dict[str, Score]) -> None:
    score = scores[fault]
    assert score.put_in, score.why_not
    assert score.seen, score
    assert score.cause_right, score


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_that_can_be_saved_ends_as_good_as_without_the_fault(fault: str, scores: dict[str, Score]) -> None:
    score = scores[fault]
    assert score.to_survive
    assert score.survived, f"{score.why_not_survived}: {score}"


def test_the_same_trainings_without_a_fault_are_left_alone(controls: list[ControlScore]) -> None:
    assert [control.training for control in controls] == list(COURSE)
    assert [(control.training, control.false_alarms, control.actions) for control in controls] == [
        (name, (), ()) for name in COURSE
    ]
