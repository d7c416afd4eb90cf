"""What a step is, and its loss and gradient norm, in the ways that steps are really made."""

from __future__ import annotations

import pytest
from watched_training import Training, Trainings, assert_bit_equal, assert_steps_are_the_scripts, recordings_of


def test_the_losses_of_an_accumulated_step_add_up_and_its_backward_calls_are_counted(trainings: Trainings) -> None:
    training = trainings("accumulation")
    assert_bit_equal(training)
    assert_steps_are_the_scripts(training)


def test_autocast_without_scaler(trainings: Trainings) -> None:
    training = trainings("autocast", "none")
    assert_bit_equal(training)
    assert_steps_without_scale(training)


def assert_steps_without_scale(training: Training) -> None:
    for recorded in recordings_of(training):
        assert recorded.steps["loss"] == pytest.approx(training.alone["losses"], rel=1e-6)
        assert recorded.steps["grad_norm"] == pytest.approx(training.alone["norms"], rel=1e-5)
        assert set(recorded.steps["scale"]) == {None}
        assert set(recorded.steps["skipped"]) == {0}


@pytest.mark.parametrize("optimizer", ["scaler", "fused"])
def test_under_a_scaler_the_loss_and_norm_are_unscaled_and_left_out_updates_are_marked(
    trainings: Trainings, optimizer: str
) -> None:
    training = trainings("autocast", optimizer)
    assert training.alone["skipped"].count(1) == 2  # the script has seen it
    assert_bit_equal(training)
    finite = [n for n, skipped in enumerate(training.alone["skipped"]) if not skipped]
    for recorded in recordings_of(training):
        steps = recorded.steps
        assert steps["loss"] == pytest.approx(training.alone["losses"], rel=1e-6)
        assert steps["skipped"] == training.alone["skipped"]
        assert steps["scale"] == training.alone["scales"]
        for step in range(20):
            if step in finite:
                assert steps["grad_norm"][step] == pytest.approx(training.alone["norms"][step], rel=1e-4)
                assert steps["non_finite"][step] == 0
            else:
                assert not steps["grad_norm"][step] < float("inf")
                assert steps["non_finite"][step] > 0
                assert recorded.table("parameters").where(step=step)


def test_clipping_after_unscaling_gives_the_unscaled_norm(trainings: Trainings) -> None:
    training = trainings("autocast", "scaler", "clip")
    assert_bit_equal(training)
    for recorded in recordings_of(training):
        finite = [n for n, skipped in enumerate(training.alone["skipped"]) if not skipped]
        norms = recorded.steps["grad_norm"]
        assert [norms[n] for n in finite] == pytest.approx([training.alone["clipped"][n] for n in finite], rel=1e-5)
        assert recorded.steps["skipped"] == training.alone["skipped"]
        assert recorded.steps["clip_norm"] == [0.5] * 20


@pytest.mark.parametrize("critic_steps", ["1", "5"])
def test_of_two_networks_against_each_other_the_larger_makes_the_steps(trainings: Trainings, critic_steps: str) -> None:
    training = trainings("adversarial", critic_steps)
    assert_bit_equal(training)
    assert_steps_are_the_scripts(training)
    assert training.recorded.names == training.recorded_in_full.names == ["rank-0"]
    names = set(training.recorded_in_full.table("parameters")["name"])
    assert "Generator.layers.0.weight" in names
    modules = set(training.recorded_in_full.table("modules")["module"])
    assert {"Generator", "Generator.layers.0", "Discriminator.layers.0"} <= modules


def test_the_main_optimizer_is_number_0_even_if_another_steps_first(trainings: Trainings) -> None:
    rows = trainings("adversarial", "1").recorded.table("groups").where()
    assert {(row["optimizer"], row["lr"]) for row in rows} == {(0, 2e-3), (1, 1e-3)}


def test_two_optimizers_on_one_loss_make_one_step_together(trainings: Trainings) -> None:
    training = trainings("two_optimizers")
    assert_bit_equal(training)
    assert_steps_are_the_scripts(training)
    assert training.recorded.names == ["rank-0"]
    rows = training.recorded.table("groups").where()
    assert {(row["optimizer"], row["lr"], row["weight_decay"]) for row in rows} == {(0, 1e-3, 0.1), (1, 0.1, 0.0)}


@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
def test_a_closure_is_recorded_with_the_loss_and_norm_of_its_first_call(trainings: Trainings, optimizer: str) -> None:
    training = trainings("closures", optimizer)
    assert (max(training.alone["calls"]) > 1) == (optimizer == "lbfgs")
    assert_bit_equal(training)
    assert_steps_are_the_scripts(training)
    for recorded in recordings_of(training):
        assert recorded.steps["backwards"] == [1] * 12  # the ones that made the gradients whose norm is recorded
        assert len(recorded.table("groups")) == 1


def test_a_norm_that_the_script_computed_by_clipping_is_taken_over(trainings: Trainings) -> None:
    training = trainings("clipping", "all")
    assert_bit_equal(training)
    returned = [norms[0] for norms in training.alone["clipped"]]
    for recorded in recordings_of(training):
        assert recorded.steps["grad_norm"] == pytest.approx(returned, rel=1e-5)
        assert recorded.steps["clip_norm"] == [0.25] * 20
    steps = set(training.recorded.table("parameters")["step"])
    taken = [n for n in range(20) if n not in steps]
    assert [training.recorded.steps["grad_norm"][n] for n in taken] == [returned[n] for n in taken]  # in every bit


@pytest.mark.parametrize("what", ["parts", "head"])
def test_clipping_some_of_the_parameters_does_not_make_their_norm_the_whole_one(trainings: Trainings, what: str) -> None:
    training = trainings("clipping", what)
    assert_bit_equal(training)
    for recorded in recordings_of(training):
        assert recorded.steps["clip_norm"][1:] == [0.25] * 19
        # In the first step the optimizer is not known before it steps, and its gradients are clipped by then.
        assert recorded.steps["grad_norm"][1:] == pytest.approx(training.alone["norms"][1:], rel=1e-5)


@pytest.mark.parametrize("when", ["step", "epoch", "tensor"])
def test_learning_rates_are_written_for_each_group_whenever_they_change(trainings: Trainings, when: str) -> None:
    training = trainings("schedulers", when)
    assert_bit_equal(training)
    rates = training.alone["rates"]
    for recorded in recordings_of(training):
        assert recorded.steps["lr"] == pytest.approx([first for first, _ in rates], rel=1e-6)
        changes = [
            (step, group, pair[group])
            for step, pair in enumerate(rates)
            for group in (0, 1)
            if step == 0 or pair[group] != rates[step - 1][group]
        ]
        table = recorded.table("groups")
        assert list(zip(table["step"], table["group"], strict=True)) == [change[:2] for change in changes]
        assert table["lr"] == pytest.approx([change[2] for change in changes], rel=1e-6)
        assert {(row["group"], row["weight_decay"]) for row in table.where()} == {(0, 0.1), (1, 0.01)}
