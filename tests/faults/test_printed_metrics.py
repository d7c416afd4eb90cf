"""Metrics that a script prints are in `evaluations`, at the step where it printed them, and none is there twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_run import PYTHON, VICTIMS, run, typed

from holdfast.probe.follow import Follower
from holdfast.probe.rows import last_rows

STEPS = [8, 16, 24, 32]  # where an epoch ends
COLUMNS = ("step", "split", "name", "value", "printed")


def evaluated(folder: Path, style: str, *options: str, **environment: str) -> dict[tuple[str, str, int], dict[int, float]]:
    """By split, name and whether it was printed: the values by step."""
    done = run(folder, "--name", "a", *options, PYTHON, str(VICTIMS / "prints_metrics.py"), style, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[tuple[str, str, int], dict[int, float]] = {}
    recording = folder / "runs/a/rank-0"
    rows = last_rows(recording, "evaluations", COLUMNS, 1000)
    for step, split, name, value, printed in zip(*rows.values(), strict=True):
        of = found.setdefault((split, name, int(printed)), {})
        assert step not in of, "it is there twice"
        of[int(step)] = float(value)
    followed = Follower(recording, "evaluations", COLUMNS).new_rows()
    assert sorted(followed["value"]) == sorted(rows["value"])
    return found


each_way_of_printing = pytest.mark.parametrize(
    "buffered", [pytest.param("1", id="line by line"), pytest.param("", id="all at the end", marks=pytest.mark.slow)]
)


@each_way_of_printing
def test_an_accuracy_without_a_split_is_that_of_the_evaluation_before_it(tmp_path: Path, buffered: str) -> None:
    found = evaluated(tmp_path, "bare", PYTHONUNBUFFERED=buffered)
    accuracy = found["val", "Accuracy", 1]
    assert list(accuracy) == STEPS and all(0.3 < value <= 1 for value in accuracy.values())
    shown = typed("query", "a", "select count(*) as n from evaluations where printed = 1", "--json", folder=tmp_path)
    assert shown.stdout == '[{"n": 4}]\n'


def test_what_holdfast_measured_itself_is_not_written_again(tmp_path: Path) -> None:
    found = evaluated(tmp_path, "split", PYTHONUNBUFFERED="1")
    assert set(found) == {("val", "loss", 0), ("val", "val_acc", 1), ("train", "acc", 1)}
    assert all(list(values) == STEPS for values in found.values())


@each_way_of_printing
def test_of_an_accuracy_of_every_training_step_only_the_one_beside_an_evaluation_is_taken(tmp_path: Path, buffered: str) -> None:
    found = evaluated(tmp_path, "every step", PYTHONUNBUFFERED=buffered)
    assert set(found) == {("val", "loss", 0), ("val", "val_acc", 1), ("train", "acc", 1)}
    assert all(list(values) == STEPS for values in found.values())


@pytest.mark.slow
def test_a_test_loss_that_was_measured_as_held_out_is_not_written_again(tmp_path: Path) -> None:
    found = evaluated(tmp_path, "heading", PYTHONUNBUFFERED="1")
    assert set(found) == {("val", "loss", 0), ("test", "Accuracy", 1)}


def test_what_the_script_logs_is_not_written_again_when_it_prints_it(tmp_path: Path) -> None:
    found = evaluated(tmp_path, "logged", PYTHONUNBUFFERED="1")
    assert set(found) == {("val", "loss", 0), ("val", "accuracy", 0)}


def test_what_a_restarted_script_prints_before_its_first_step_is_not_of_the_training_that_ended(tmp_path: Path) -> None:
    found = evaluated(tmp_path, "killed once", "--policy", "heal", PYTHONUNBUFFERED="1")
    assert set(found) == {("val", "loss", 0), ("val", "val_acc", 1)}
