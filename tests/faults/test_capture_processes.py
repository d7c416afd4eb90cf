"""Several trainings: in one process, in its children, in ranks; and processes that do not train."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from watched_training import Trainings, assert_bit_equal, assert_steps_are_the_scripts, recordings_of

TORCHRUN = (str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc_per_node=2")


def test_trainings_one_after_the_other_are_told_apart(trainings: Trainings) -> None:
    training = trainings("inside_functions")
    assert_bit_equal(training)
    story = training.alone
    for recorded in recordings_of(training):
        assert recorded.names == ["rank-0", "rank-0.1", "rank-0.2"]
        for number, name in enumerate(recorded.names):
            of_it = [n for n, training_number in enumerate(story["training"]) if training_number == number]
            steps = recorded.table("steps", name)
            assert steps["step"] == list(range(len(of_it)))
            assert steps["loss"] == pytest.approx([story["losses"][n] for n in of_it])
            assert steps["grad_norm"] == pytest.approx([story["norms"][n] for n in of_it], rel=1e-5)
            assert steps["lr"] == pytest.approx([story["lr"][n] for n in of_it])
            assert steps["samples"] == [story["samples"][n] for n in of_it]
            assert steps["epoch"] == [n // 5 for n in range(len(of_it))]
            assert (steps["scale"][0] is None) == (number > 0)


def test_trainings_that_were_planned_ahead_are_told_apart_too(trainings: Trainings) -> None:
    training = trainings("planned_ahead")
    assert_bit_equal(training)
    for recorded in recordings_of(training):
        losses = [loss for name in recorded.names for loss in recorded.table("steps", name)["loss"]]
        assert losses == pytest.approx(training.alone["losses"])


def test_nothing_of_a_training_is_kept_alive(trainings: Trainings) -> None:
    training = trainings("inside_functions")
    assert training.alone["alive"] == training.watched.story["alive"] == training.full.story["alive"] == [0, 0, 0]


def test_a_new_optimizer_for_the_same_model_goes_on_in_the_same_recording(trainings: Trainings) -> None:
    training = trainings("optimizer_again")
    assert_bit_equal(training)
    assert_steps_are_the_scripts(training)
    for recorded in recordings_of(training):
        assert recorded.names == ["rank-0"]
        assert [(row["step"], row["lr"]) for row in recorded.table("groups").where(optimizer=0)] == [(0, 1e-3), (10, 0.02)]


@pytest.mark.parametrize("how", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_child_that_trains_has_its_own_recording_and_one_that_does_not_has_none(trainings: Trainings, how: str) -> None:
    training = trainings("children", how)
    assert_bit_equal(training)
    story = training.alone
    assert story["exits"] == [0, 0]
    for recorded in recordings_of(training):
        assert recorded.names == ["rank-0", "rank-0.1", "rank-0.2"]
        losses = [recorded.table("steps", name)["loss"] for name in recorded.names]
        assert losses[0] == pytest.approx(story["before"][0])
        assert losses[1][:281] == pytest.approx(story["in_child"])
        assert len(losses[1]) == 300  # to the last one, though they came thick and fast
        assert losses[2] == pytest.approx(story["after"][0])
        processes = [recording.info()["pid"] for recording in recorded.run.recordings()]
        assert len(set(processes)) == 2


def test_a_process_that_never_trains_leaves_no_trace(trainings: Trainings) -> None:
    training = trainings("never_trains")
    assert_bit_equal(training)
    for recorded in recordings_of(training):
        assert recorded.names == []


@pytest.mark.slow
def test_two_ranks_are_recorded_each(trainings: Trainings) -> None:
    training = trainings("ddp", launcher=TORCHRUN)
    assert_bit_equal(training)
    for recorded in recordings_of(training):
        assert recorded.names == ["rank-0", "rank-1"]
        for rank, story in enumerate(training.alone["ranks"]):
            steps = recorded.table("steps", f"rank-{rank}")
            assert steps["loss"] == pytest.approx(story["losses"])
            assert steps["grad_norm"] == pytest.approx(story["norms"], rel=1e-5)
            assert steps["epoch"] == story["epochs"]
            assert steps["samples"] == story["samples"]
            collectives = recorded.table("collectives", f"rank-{rank}")
            assert [row["step"] for row in collectives.where(operation="all_reduce")] == [4, 8, 12, 16]
    names = training.recorded_in_full.table("parameters", "rank-1")["name"]
    assert set(names) == set(training.alone["names"])
