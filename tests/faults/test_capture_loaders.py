"""Loaders of every kind: samples, passes, waiting time, worker processes."""

from __future__ import annotations

import pytest
from watched_training import Trainings, assert_bit_equal, recordings_of


@pytest.mark.parametrize("kind", ["workers", "persistent", "iterable", "endless", "list"])
def test_samples_and_passes_are_those_of_the_loader(trainings: Trainings, kind: str) -> None:
    training = trainings("loaders", kind)
    assert_bit_equal(training)
    for recorded in recordings_of(training):
        steps = recorded.steps
        assert recorded.names == ["rank-0"]  # workers leave no recording of their own
        assert steps["loss"] == pytest.approx(training.alone["losses"])
        assert steps["samples"] == training.alone["samples"]
        assert steps["epoch"] == training.alone["epochs"]
        assert all(0 < waited < 60 for waited in steps["data_seconds"])


def test_worker_processes_are_seen_with_their_memory(trainings: Trainings) -> None:
    recorded = trainings("loaders", "persistent").recorded
    rows = recorded.table("loader").where()
    assert {row["worker"] for row in rows} == {0, 1}
    assert len({row["pid"] for row in rows}) == 2
    sizes = [row["rss"] for row in rows if row["rss"] is not None]  # a worker that has just ended has none
    assert sizes and all(2**20 < size < 2**36 for size in sizes)
    assert all(row["queue"] >= 0 for row in rows)
    seen = [memory for memory in recorded.steps["workers_rss"] if memory is not None]
    assert seen
    assert all(2**20 < memory < 2**36 for memory in seen)


def test_between_two_passes_a_loader_is_not_taken_for_one_without_workers(trainings: Trainings) -> None:
    training = trainings("loaders", "workers")
    for recorded in recordings_of(training):
        assert set(recorded.table("loader")["worker"]) <= {0, 1}


def test_a_slow_loader_shows_as_waiting(trainings: Trainings) -> None:
    assert sum(trainings("loaders", "workers").recorded.steps["data_seconds"]) > 0.05
    table = trainings("loaders", "persistent").recorded.table("loader")
    assert sum(row["wait_seconds"] for row in table.where()) > 0.0
