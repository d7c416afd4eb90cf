"""The loop that everyone writes, recorded without a change to it."""

from __future__ import annotations

from statistics import median

import pytest
from watched_training import Recorded, Training, Trainings, assert_bit_equal

from holdfast.signals.schema import STEPS

OPENING = 3  # steps before everything is sampled; the first ones are slow anyway


@pytest.fixture
def loop(trainings: Trainings) -> Training:
    return trainings("plain_loop")


@pytest.fixture(params=["default", "full"])
def recorded(request: pytest.FixtureRequest, loop: Training) -> Recorded:
    return loop.recorded if request.param == "default" else loop.recorded_in_full


def test_weights_losses_and_random_state_are_bit_equal_with_and_without_holdfast(loop: Training) -> None:
    assert_bit_equal(loop)


def test_every_step_of_the_script_is_one_row(loop: Training, recorded: Recorded) -> None:
    assert recorded.names == ["rank-0"]
    assert recorded.steps["step"] == list(range(20))
    assert recorded.steps["backwards"] == [1] * 20


def test_loss_learning_rate_and_gradient_norm_are_the_scripts(loop: Training, recorded: Recorded) -> None:
    assert recorded.steps["loss"] == loop.alone["losses"]
    assert recorded.steps["lr"] == loop.alone["lr"]
    assert recorded.steps["grad_norm"] == pytest.approx(loop.alone["norms"], rel=1e-5)
    assert recorded.steps["non_finite"] == [0] * 20


def test_epochs_and_samples_are_those_of_the_training_loader_alone(loop: Training, recorded: Recorded) -> None:
    assert recorded.steps["epoch"] == loop.alone["epochs"]
    assert recorded.steps["samples"] == loop.alone["samples"]


def test_times_and_memory_are_there_and_plausible(recorded: Recorded) -> None:
    steps = recorded.steps
    assert steps["step_seconds"][0] is None
    assert all(0 < seconds < 60 for seconds in steps["step_seconds"][1:])
    assert all(0 < waited < 60 for waited in steps["data_seconds"])
    assert all(waited < seconds for waited, seconds in zip(steps["data_seconds"][1:], steps["step_seconds"][1:], strict=True))
    assert all(2**25 < memory < 2**36 for memory in steps["host_rss"])
    assert steps["time"] == sorted(steps["time"])
    assert all(cost > 0 for cost in steps["holdfast_seconds"])
    assert median(steps["holdfast_seconds"]) < median(steps["step_seconds"][1:])


def test_what_a_cpu_training_without_scaler_and_clipping_has_not_is_missing(recorded: Recorded) -> None:
    for name in ("scale", "clip_norm", "gpu_allocated", "gpu_reserved", "gpu_peak", "workers_rss"):
        assert set(recorded.steps[name]) == {None}, name
    assert recorded.steps["skipped"] == [0] * 20


def test_each_evaluation_is_the_mean_over_its_samples(loop: Training, recorded: Recorded) -> None:
    rows = recorded.table("evaluations")
    assert rows["value"] == pytest.approx(loop.alone["validation"])
    assert rows["step"] == [5, 10, 15, 20]
    assert rows["epoch"] == [0, 1, 2, 3]
    assert set(rows["split"]) == {"val"}
    assert set(rows["name"]) == {"loss"}
    assert rows["samples"] == [25] * 4


def test_parameters_bear_their_names_and_their_norms_add_up(loop: Training) -> None:
    table = loop.recorded_in_full.table("parameters")
    for step, whole in list(enumerate(loop.alone["norms"]))[OPENING:]:
        rows = table.where(step=step)
        assert [row["name"] for row in rows] == loop.alone["names"]
        assert sum(row["grad_norm"] ** 2 for row in rows) ** 0.5 == pytest.approx(whole, rel=1e-5)
        assert all(0 <= row["grad_max"] <= row["grad_norm"] * 1.0001 for row in rows)
        assert all(row["non_finite"] == 0 for row in rows)


def test_weight_norm_and_update_ratio_are_sampled(loop: Training) -> None:
    steps = loop.recorded_in_full.steps
    squares = [row["weight_norm"] ** 2 for row in loop.recorded_in_full.table("parameters").where(step=7)]
    assert steps["weight_norm"][7] == pytest.approx(sum(squares) ** 0.5)
    assert all(1e-5 < ratio < 1.0 for ratio in steps["update_ratio"][OPENING:])


def test_modules_bear_their_names_in_both_stages(loop: Training) -> None:
    table = loop.recorded_in_full.table("modules")
    names = {name or "(model)" for name in loop.alone["modules"]}
    for step in range(OPENING, 20):
        rows = table.where(step=step)
        assert {row["module"] for row in rows if row["stage"] == "forward"} == names
        assert {row["module"] for row in rows if row["stage"] == "backward"} == names
        assert len(rows) == 2 * len(names)
        assert all(0 < row["seconds"] < 10 and row["host_rss"] > 2**25 for row in rows)


def test_a_module_takes_no_longer_than_the_model_that_holds_it(loop: Training) -> None:
    table = loop.recorded_in_full.table("modules")
    for step in range(OPENING, 20):
        for stage in ("forward", "backward"):
            rows = {row["module"]: row["seconds"] for row in table.where(step=step, stage=stage)}
            whole = rows.pop("(model)")
            assert max(rows.values()) <= whole
            if stage == "forward":
                assert sum(rows.values()) <= whole


def test_the_default_samples_parameters_and_modules_within_the_first_steps(loop: Training) -> None:
    assert loop.recorded.table("parameters")["step"][0] <= 2
    assert loop.recorded.table("modules")["step"][0] <= 4


def test_the_learning_rate_of_the_group_is_written_once_while_it_stays(loop: Training, recorded: Recorded) -> None:
    (row,) = recorded.table("groups").where()
    assert (row["step"], row["optimizer"], row["group"], row["lr"]) == (0, 0, 0, 1e-2)
    assert row["weight_decay"] == pytest.approx(1e-2)


def test_the_tables_know_every_column_of_the_schema(loop: Training, recorded: Recorded) -> None:
    assert all(len(recorded.steps[name]) == 20 for name in STEPS.column_names)
