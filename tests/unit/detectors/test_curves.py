"""Symptoms in whole curves, on curves made by a known process: each is seen, and its look-alikes are left alone."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
from every_case import every_case

from holdfast.detectors.curves.order import look_at
from holdfast.signals.curves import Curve, Curves, Floats


def run(train: Floats | None = None, val: Floats | None = None, accuracy: Floats | None = None, **more: Floats) -> Curves:
    def curve(name: str, values: Floats, role: str, split: str, better: str | None) -> Curve:
        return Curve(name, np.arange(len(values)), np.asarray(values, float), role=role, split=split, better=better)

    found = []
    if train is not None:
        found.append(curve("loss", train, "loss", "train", "lower"))
    if val is not None:
        found.append(curve("val_loss", val, "loss", "val", "lower"))
    if accuracy is not None:
        found.append(curve("val_acc", accuracy, "metric", "val", "higher"))
    found += [curve(name, values, name, "train", None) for name, values in more.items()]
    return Curves("run", tuple(found))


def codes(curves: Curves) -> set[str]:
    return {finding.code for finding in look_at(curves)}


def noise(seed: int, size: int, scale: float) -> Floats:
    return np.random.default_rng(seed).normal(0.0, scale, size)


T = np.arange(100)
FALLING = 0.2 + 2.0 * np.exp(-T / 15)


@every_case("seed", range(20))
def test_a_run_that_falls_and_flattens_with_noise_is_left_alone(seed: int) -> None:
    train, val = FALLING + noise(seed, 100, 0.02), FALLING + 0.1 + noise(seed + 100, 100, 0.03)
    accuracy = 0.9 - 0.8 * np.exp(-T / 15) + noise(seed + 200, 100, 0.01)
    assert codes(run(train, val, accuracy)) == set()


@every_case("seed", range(20))
def test_a_noisy_but_falling_loss_is_no_oscillation(seed: int) -> None:
    val = 3.0 * np.exp(-T / 60) * np.exp(noise(seed, 100, 0.25))
    assert "loss-oscillation" not in codes(run(FALLING, val))


@every_case("seed", range(10))
def test_a_validation_loss_that_swings_and_goes_nowhere_is_an_oscillation(seed: int) -> None:
    val = 1.0 * np.exp(noise(seed, 100, 0.4))
    assert "loss-oscillation" in codes(run(FALLING, val))


@every_case("seed", range(10))
def test_a_validation_loss_that_rises_while_the_training_loss_falls_is_overfitting(seed: int) -> None:
    val = np.where(T < 30, 0.5 + 1.5 * np.exp(-T / 8), 0.53 + 0.005 * (T - 30)) + noise(seed, 100, 0.01)
    assert codes(run(FALLING, val)) == {"overfitting"}


@every_case(("accuracy", "overfits"), [([0.0] * 9 + [0.01, 0.05, 0.3, 0.31, 0.32, 0.35, 0.4], False), ([0.3] * 16, True)])
def test_a_detector_whose_first_objects_cost_it_a_loss_does_not_overfit(accuracy: list[float], overfits: bool) -> None:
    val = [4.1, 4.1, 3.6, 2.9, 2.2, 1.3, 1.2, 1.1, 5.1, 5.0, 3.7, 2.9, 2.9, 4.1, 3.6, 3.4]  # of boxes
    found = codes(run(np.linspace(6.5, 3.0, 16), np.array(val), np.array(accuracy)))
    assert ("overfitting" in found) is overfits


@every_case("seed", range(20))
def test_noise_in_the_validation_is_no_overfitting(seed: int) -> None:
    val = FALLING + 0.5 + noise(seed, 100, 0.05)
    assert "overfitting" not in codes(run(FALLING, val))


@every_case("seed", range(5))
def test_the_loss_of_a_game_that_rises_by_half_is_no_divergence_and_one_that_triples_is(seed: int) -> None:
    game = np.interp(np.arange(1200), [0, 300, 900, 1199], [0.69, 0.74, 0.85, 1.05]) + noise(seed, 1200, 0.08)
    assert "loss-divergence" not in codes(run(game))
    assert "loss-divergence" in codes(
        run(np.interp(np.arange(1200), [0, 300, 1199], [0.69, 0.74, 2.4]) + noise(seed, 1200, 0.08))
    )


def test_a_rise_that_is_next_to_nothing_of_what_was_learned_is_a_remark() -> None:
    train = np.interp(np.arange(1200), [0, 200, 400, 1200], [2.3, 0.05, 0.004, 0.001])
    val = np.interp(np.arange(20), [0, 5, 19], [0.2, 0.0314, 0.0363])
    (finding,) = [finding for finding in look_at(run(train, val)) if finding.code == "overfitting"]
    assert finding.severity == "info"


def test_few_evaluations_that_rise_each_time_are_overfitting() -> None:
    assert "overfitting" in codes(run(np.linspace(0.3, 0.0, 200), np.interp(np.arange(5), [0, 4], [0.32, 0.42])))


@every_case("classes", [2, 4, 10, 100])
def test_a_loss_that_stays_at_that_of_guessing_does_not_learn(classes: int) -> None:
    train = np.log(classes) + noise(classes, 60, 0.004)
    (finding,) = [finding for finding in look_at(run(train)) if finding.code == "not-learning"]
    assert finding.evidence["classes"] == (classes if classes < 20 else None), "118 classes are said of a loss of 100 at once"


def test_a_long_flat_start_that_then_learns_is_no_failure() -> None:
    train = np.where(T < 50, 2.3, 0.3 + 2.0 * np.exp(-(T - 50) / 10)) + noise(1, 100, 0.01)
    assert codes(run(train)) == set()


def test_a_spike_that_came_back_is_a_remark_and_one_that_did_not_is_not() -> None:
    train = FALLING.copy()
    train[60:62] = 3.0
    (finding,) = look_at(run(train))
    assert (finding.code, finding.severity, finding.evidence["recovered"]) == ("loss-spike", "info", True)
    train[60:] = 3.0
    found = {finding.code: finding for finding in look_at(run(train))}
    assert "loss-divergence" in found and found["loss-divergence"].severity == "critical"
    assert found["loss-divergence"].onset == 60


def test_nan_is_found_where_it_began_and_whether_it_stayed() -> None:
    train = FALLING.copy()
    train[40:] = np.nan
    (finding,) = [finding for finding in look_at(run(train, FALLING)) if finding.code == "non-finite-loss"]
    assert finding.onset == 40 and finding.evidence["count"] == 60 and not finding.evidence["recovered"]


def test_a_few_non_finite_norms_are_the_scaler_looking_for_its_scale() -> None:
    norm = np.ones(100)
    norm[[0, 1, 50]] = np.nan
    assert codes(run(FALLING, norm=norm)) == set()
    norm[20:60] = np.nan
    assert codes(run(FALLING, norm=norm)) == {"non-finite-gradient"}


def test_a_metric_that_loses_what_it_gained_has_collapsed() -> None:
    accuracy = np.where(T < 60, 0.9 - 0.8 * np.exp(-T / 15), 0.12)
    assert "metric-collapse" in codes(run(FALLING, accuracy=accuracy))
    assert "metric-collapse" not in codes(run(FALLING, accuracy=np.where(T < 60, 0.9 - 0.8 * np.exp(-T / 15), 0.8)))


def test_a_metric_that_never_leaves_the_bottom_does_not_learn() -> None:
    assert "not-learning" in codes(run(FALLING, np.full(100, 3.0), np.full(100, 0.001) + np.abs(noise(1, 100, 1e-4))))


@every_case("points", [1, 2, 3, 4])
def test_of_a_few_points_nothing_is_said(points: int) -> None:
    assert codes(run(np.array([1.0, 9.0, 1.0, 9.0])[:points], np.array([1.0, 2.0, 3.0, 4.0])[:points])) == set()


@every_case("make", [lambda v: v * 1e-6, lambda v: v * 1e6, lambda v: v - 5.0], ids=["small", "large", "negative"])
def test_the_size_of_the_numbers_makes_no_difference(make: Callable[[Floats], Floats]) -> None:
    assert codes(run(make(FALLING + noise(3, 100, 0.02)), make(FALLING + 0.1 + noise(4, 100, 0.02)))) == set()


@every_case("seed", range(10))
def test_losses_of_single_small_batches_have_long_tails_and_that_is_no_spike(seed: int) -> None:
    train = 0.5 * np.exp(noise(seed, 600, 0.8))
    assert "loss-spike" not in codes(run(train))


@every_case("length", [5_000, 200_000])
def test_a_curve_of_any_length_is_judged_alike_and_in_little_memory(length: int) -> None:
    x = np.linspace(0, 1, length)
    falls = 2 * np.exp(-8 * x) + 0.3 + noise(1, length, 0.05)
    rises = np.where(x < 0.5, falls, falls + 6 * (x - 0.5))
    tracemalloc.start()
    assert codes(run(falls)) <= {"loss-spike"}
    assert "loss-divergence" in codes(run(rises))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


def test_the_training_loss_of_a_policy_whose_reward_rises_may_rise_too() -> None:
    rising = np.linspace(0.1, 0.9, 200)
    rewarded = Curve("ep_rew_mean", np.arange(200), np.linspace(-500.0, 200.0, 200))
    assert "loss-divergence" in codes(Curves("run", (Curve("loss", np.arange(200), rising, role="loss", better="lower"),)))
    both = (Curve("loss", np.arange(200), rising, role="loss", better="lower"), rewarded)
    assert "loss-divergence" not in codes(Curves("run", both))


def test_a_metric_that_never_rose_does_not_collapse_and_one_class_of_many_is_not_the_model() -> None:
    def metric(name: str, values: list[float]) -> Curve:
        return Curve(name, np.arange(len(values)), np.array(values), role="metric", split="val", better="higher")

    bottom = metric("mAP50", [0.0, 0.001, 0.006, 0.004, 0.003, 0.001, 0.0, 0.0, 0.0, 0.0])
    assert "metric-collapse" not in codes(Curves("run", (bottom,)))
    fell = metric("class 1 f1", [0.0, 0.1, 0.6, 0.6, 0.5, 0.1, 0.0, 0.0, 0.0, 0.0])
    rose = [metric(f"class {number} f1", [0.1, 0.2, 0.4, 0.5, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6]) for number in (2, 3, 4)]
    assert "metric-collapse" in codes(Curves("run", (fell,)))
    assert "metric-collapse" not in codes(Curves("run", (fell, *rose)))


def test_a_metric_that_lost_half_of_where_it_began_has_declined() -> None:
    values = np.concatenate([np.full(10, 0.35), np.linspace(0.35, 0.15, 30)])
    curve = Curve("mAP50", np.arange(40), values, role="metric", split="val", better="higher")
    assert {"metric-collapse", "metric-decline"} & codes(Curves("run", (curve,)))


def test_a_spike_of_a_thousand_times_that_stays_six_times_too_high_has_not_recovered() -> None:
    values = np.concatenate([np.full(100, 0.02), [20.0], np.geomspace(20.0, 0.14, 20), np.full(80, 0.14)])
    values *= np.random.default_rng(0).uniform(0.97, 1.03, len(values))
    (spike,) = [one for one in look_at(run(values)) if one.code == "loss-spike"]
    assert spike.evidence["recovered"] is False


def test_a_validation_that_was_nan_once_and_came_back_is_a_note() -> None:
    train = Curve("loss", np.arange(40), np.linspace(2.0, 0.5, 40), role="loss", better="lower")
    values = np.linspace(2.0, 0.6, 40)
    values[3] = np.nan
    held_out = Curve("val_loss", np.arange(40), values, role="loss", split="val", better="lower")
    (told,) = [one for one in look_at(Curves("run", (train, held_out))) if one.code == "non-finite-loss"]
    assert told.severity == "info"


def test_a_noisy_loss_that_falls_slowly_is_not_called_flat_before_that_can_be_seen() -> None:
    steps, alarms = np.arange(90), 0
    for seed in range(40):
        falling = 1.0 + 1.3 * np.exp(-steps / 600) + noise(seed, 90, 0.25)
        alarms += "not-learning" in codes(run(falling))
    assert alarms <= 1
    long = 2.3 + noise(0, 2000, 0.25)
    assert "not-learning" in codes(run(long))


def test_a_loss_that_falls_by_a_trifle_has_not_learned() -> None:
    steps = np.arange(350)
    assert "not-learning" in codes(run(32.0 + 1e-3 * np.exp(-steps / 100) + noise(0, 350, 3e-4)))
    assert "not-learning" not in codes(run(32.0 + 0.1 * np.exp(-steps / 100) + noise(0, 350, 3e-4)))


def test_a_run_that_has_hardly_ended_its_warm_up_is_not_said_to_learn_nothing() -> None:
    loss = 30.0 + noise(3, 54, 0.5)
    assert "not-learning" in codes(run(loss, lr=np.full(54, 4e-4)))
    assert "not-learning" not in codes(run(loss, lr=np.linspace(1e-5, 4e-4, 54)))


def test_a_fine_tuning_that_is_better_than_chance_from_the_start_does_not_learn_nothing() -> None:
    def tuned(name: str, value: float) -> Curves:
        metric = Curve(name, 24 * np.arange(1, 9), np.full(8, value), role="metric", split="val", better="higher")
        return Curves("run", (*run(19.5 + noise(3, 192, 0.3)).curves, metric))

    assert "not-learning" not in codes(tuned("map", 0.17)) and "not-learning" not in codes(tuned("mAP50-95", 0.17))
    assert "not-learning" in codes(tuned("map", 0.001)) and "not-learning" in codes(tuned("accuracy", 0.17))


@every_case(("every", "expected"), [(2, set()), (10, {"not-learning"})])
def test_a_metric_at_zero_is_no_news_within_a_few_dozen_updates(every: int, expected: set[str]) -> None:
    curve = Curve("mAP50", every * np.arange(1, 28), np.zeros(27), role="metric", split="val", better="higher")
    assert codes(Curves("run", (curve,))) == expected
