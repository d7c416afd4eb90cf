from __future__ import annotations

import math
from pathlib import Path

import pytest
from every_case import every_case
from made_trial import recorded

from holdfast.drills.metric import metric_of, rise_of_loss


@every_case(
    ("output", "name", "value"),
    [
        ("epoch 1 loss 0.5 accuracy 0.80\nepoch 2 loss 0.4 accuracy 0.91\n", "accuracy", 0.91),
        ('{"accuracy": 0.97}\n', "accuracy", 0.97),
        ("validation loss 0.315, accuracy 0.922\n", "accuracy", 0.922),
        ("test_acc1 91.2 test_acc5 99.7\n", "acc1", 91.2),
        ("train loss 0.3\nval loss 0.4\ntrain loss 0.2\n", "val loss", 0.4),
    ],
)
def test_of_what_was_printed_the_last_number_that_says_most_is_taken(output: str, name: str, value: float) -> None:
    found = metric_of(None, output)
    assert found is not None and found.name.endswith(name) and found.value == value
    assert found.higher is ("acc" in name)


def test_the_name_that_was_asked_for_wins() -> None:
    output = "accuracy: 0.9 f1: 0.7\ntest_f1: 0.6\n"
    found = metric_of(None, output, "f1")
    assert found is not None and (found.name, found.value) == ("f1", 0.7)
    assert metric_of(None, output, "bleu") is None


def test_a_loss_that_became_nan_is_not_passed_over_for_an_older_one() -> None:
    found = metric_of(None, "val loss 0.4\nval loss nan\n")
    assert found is not None and math.isnan(found.value)


def test_a_training_that_says_nothing_has_no_metric() -> None:
    assert metric_of(None, "hello\ntook 3.2 seconds\n") is None


def test_what_was_evaluated_says_more_than_what_was_printed(tmp_path: Path) -> None:
    run = recorded(tmp_path, [("val", "loss", 0.5), ("val", "accuracy", 0.7), ("val", "accuracy", 0.8)], [1.0, 0.9])
    found = metric_of(run, "accuracy: 0.99\n")
    assert found is not None and (found.name, found.value, found.higher) == ("val accuracy", 0.8, True)


def test_a_printed_accuracy_says_more_than_a_loss_that_was_seen(tmp_path: Path) -> None:
    run = recorded(tmp_path, [("val", "loss", 0.5)], [1.0, 0.9])
    assert getattr(metric_of(run, "accuracy: 0.99\n"), "value", None) == 0.99
    assert getattr(metric_of(run, ""), "name", None) == "val loss"


def test_without_anything_else_the_last_losses_are_the_metric_with_their_noise(tmp_path: Path) -> None:
    run = recorded(tmp_path, [], [5.0] * 80 + [1.0, 1.2] * 10)
    found = metric_of(run, "")
    assert found is not None and found.name == "train loss" and not found.higher
    assert found.value == pytest.approx(1.1) and found.noise == pytest.approx(0.1 / math.sqrt(20), rel=0.01)


LEARNED = [1.0 * 0.9**step for step in range(100)]


@every_case(("after", "rise"), [([1e-5] * 100, 0.0), ([1e-5, 0.5, 1e-5], 0.5), ([1e-5, math.nan], math.inf)])
def test_a_rise_of_the_loss_is_measured_by_what_had_been_learned(tmp_path: Path, after: list[float], rise: float) -> None:
    assert rise_of_loss(recorded(tmp_path, [], LEARNED + after), 100) == pytest.approx(rise, abs=0.3 * rise or 0.01)


def test_where_nothing_had_been_learned_no_rise_is_known(tmp_path: Path) -> None:
    assert rise_of_loss(recorded(tmp_path, [], [2.3] * 100 + [2.9] * 100), 100) is None
    assert rise_of_loss(None, 100) is None


def test_a_loss_that_stays_among_those_before_it_did_not_rise(tmp_path: Path) -> None:
    noisy = [0.2 + 0.1 * math.sin(7.0 * step) for step in range(200)]
    assert rise_of_loss(recorded(tmp_path / "same", [], [2.0, 1.0, *noisy]), 100) == 0.0
    assert (
        rise_of_loss(recorded(tmp_path / "risen", [], [2.0, 1.0, *noisy[:98], *(loss + 0.4 for loss in noisy[98:])]), 100) != 0.0
    )


def test_a_held_out_loss_far_below_the_first_loss_has_that_for_its_noise(tmp_path: Path) -> None:
    found = metric_of(recorded(tmp_path, [("val", "loss", 5e-6)], LEARNED), "")
    assert found is not None and 2 * found.noise == pytest.approx(1e-4, rel=0.3)


def test_a_metric_that_goes_up_and_down_by_chance_says_by_how_much(tmp_path: Path) -> None:
    swinging = [("val", "accuracy", value) for value in (0.1, 0.3, 0.5, 0.6, 0.62, 0.56, 0.63, 0.58, 0.64, 0.57, 0.62)]
    found = metric_of(recorded(tmp_path / "swinging", swinging, LEARNED), "")
    assert found is not None and found.value == 0.62 and 0.02 < found.noise < 0.08
    steady = metric_of(recorded(tmp_path / "steady", [("val", "accuracy", 0.1 * n) for n in range(10)], LEARNED), "")
    assert steady is not None and steady.noise < 1e-9, "what rises steadily does not swing"


def test_a_metric_of_every_evaluation_comes_before_one_that_is_said_once(tmp_path: Path) -> None:
    rows = [("val", "map", 0.1), ("val", "map", 0.3), ("val", "best map", 0.3)]  # a busy machine may miss the last line
    found = metric_of(recorded(tmp_path, rows, [1.0, 0.5]), "")
    assert found is not None and (found.name, found.value) == ("val map", 0.3)
