"""Symptoms in the inputs and the rate of a run: found where they are, and healthy data of any kind is left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from every_case import every_case

from holdfast.detectors.runs.constant_input import constant_batches
from holdfast.detectors.runs.guessing import guessing
from holdfast.detectors.runs.memory_growth import host_memory_growth
from holdfast.detectors.runs.preprocessing import preprocessing_mismatch
from holdfast.detectors.runs.rate_dropped import rate_dropped
from holdfast.detectors.runs.split_leak import split_leak
from holdfast.detectors.runs.unshuffled import unshuffled_data
from holdfast.signals.run_view import STEP_COLUMNS, InputSample, RunView
from holdfast.signals.schema import MISSING, MISSING_INT, TABLES

USUAL: dict[str, Any] = {"mean": 0.0, "deviation": 1.0, "samples": 32, "distinct": 32, "known": 0, "entropy": MISSING}


def view(count: int = 512, **columns: Any) -> RunView:
    kinds = {column.name: column.kind for column in TABLES["steps"].columns}
    rows = {name: np.full(count, kinds[name].missing, kinds[name].dtype) for name in STEP_COLUMNS}
    rows["step"] = np.arange(count)
    for name, values in columns.items():
        rows[name][:] = values
    run = RunView()
    run.add_steps(rows)
    return run


def look(run: RunView, step: int, split: str = "train", source: int = 0, *, labels: Any = None, **inputs: Any) -> None:
    """A batch of numbers and labels was looked at."""
    rest = {"known_share": 0.1, "repeats": MISSING_INT}
    run.inputs.append(InputSample(step=step, split=split, source=source, field="0", **{**USUAL, **rest, **inputs}))
    label = {"mean": 4.5, "deviation": 2.9, "distinct": 10, "known": MISSING_INT, "entropy": 2.3, **(labels or {})}
    run.inputs.append(InputSample(step=step, split=split, source=source, field="1", **{**USUAL, **rest, **label}))


def looked_at(held_out: dict[str, Any] | None = None, run: RunView | None = None, **learned: Any) -> RunView:
    run = run or view()
    for number in range(8):
        look(run, 10 * number, **(learned if number else {**learned, "known": min(0, learned.get("known", 0))}))
        if held_out is not None:
            look(run, 10 * number + 5, "val", 1, **held_out)
    return run


@every_case(
    "held_out",
    [{"mean": 117.0, "deviation": 57.0}, {"mean": 0.45, "deviation": 0.25}, {"mean": 2.5}, {"mean": 0.0, "deviation": 255.0}],
)
def test_held_out_inputs_of_another_scale_are_a_mismatch(held_out: dict[str, Any]) -> None:
    found = preprocessing_mismatch(looked_at(held_out))
    assert found is not None and found.severity == "warning" and found.evidence["field"] == "0"


@every_case(
    ("held_out", "expected"), [({"mean": 117.0}, True), ({"mean": 2.5}, False), ({"deviation": 255.0}, True), ({}, False)]
)
def test_the_only_evaluation_of_a_run_that_is_over_must_be_far_off(held_out: dict[str, float], expected: bool) -> None:
    run = looked_at()
    look(run, 81, "val", 1, **held_out)
    assert preprocessing_mismatch(run) is None, "there may be more"
    run.ended = True
    assert (preprocessing_mismatch(run) is not None) == expected


@every_case("held_out", [{}, {"deviation": 0.7}, {"deviation": 1.6, "mean": 0.5}, {"mean": -1.2}, {"deviation": 0.0}])
def test_augmentation_and_a_shift_of_the_data_are_no_mismatch(held_out: dict[str, Any]) -> None:
    assert preprocessing_mismatch(looked_at(held_out)) is None


@every_case("seed", range(20))
def test_long_tails_are_no_mismatch(seed: int) -> None:
    random, run = np.random.default_rng(seed), view()
    for step in range(12):
        for split, source in (("train", 0), ("val", 1)):
            numbers = random.lognormal(0, 2.0, (32, 8))
            look(run, step, split, source, mean=float(numbers.mean()), deviation=float(numbers.std()))
    assert preprocessing_mismatch(run) is None


def test_an_evaluation_on_the_training_data_itself_is_not_compared() -> None:
    run = looked_at()
    for step in range(4):
        look(run, step, "val", 0, deviation=100.0, known=32)
    assert preprocessing_mismatch(run) is None and split_leak(run) is None


def test_held_out_samples_that_were_learned_from_are_a_leak() -> None:
    found = split_leak(looked_at({"known": 3, "known_share": 0.1}))
    assert found is not None and found.evidence["fraction"] == pytest.approx(0.94, abs=0.1)


def test_the_size_of_the_training_data_is_judged_by_what_comes_again() -> None:
    found = split_leak(looked_at({"known": 3, "known_share": float("nan")}, known=4, repeats=0))
    assert found is not None and found.evidence["fraction"] == pytest.approx(0.75)
    assert split_leak(looked_at({"known": 1, "known_share": float("nan")}, known=16, repeats=0)) is None


@every_case(
    "held_out",
    [{"known": 0}, {"known": 1, "known_share": 0.5}, {"known": 5, "known_share": float("nan")}, {"known": MISSING_INT}],
)
def test_a_few_copies_are_no_leak(held_out: dict[str, Any]) -> None:
    assert split_leak(looked_at(held_out)) is None


def test_data_that_repeats_by_itself_says_nothing_of_the_split() -> None:
    assert split_leak(looked_at({"known": 20}, distinct=25)) is None


def test_samples_that_come_again_within_one_pass_say_nothing_of_the_split() -> None:
    held_out = {"known": 3, "known_share": 0.1}
    assert split_leak(looked_at(held_out, known=2)) is None
    assert split_leak(looked_at(held_out, known=2, repeats=0)) is not None  # of later passes
    run = view()
    for number, known in enumerate((0, 2, 1)):  # one pass, which begins like none before
        look(run, 10 * number, known=known, known_share=0.05, **({} if number else {"repeats": 0}))
    assert split_leak(looked_at(held_out, run, known=4, repeats=0)) is None


def test_one_clean_data_set_beside_the_training_data_is_enough() -> None:
    run = looked_at({"known": 30, "known_share": 0.9})
    for step in range(4):
        look(run, step, "val", 2)
    assert split_leak(run) is None


def test_batches_of_one_and_the_same_sample_are_constant() -> None:
    found = constant_batches(looked_at(distinct=1, mean=0.3))
    assert found is not None and found.evidence["same_input"]


def test_batches_that_are_one_tensor_without_labels_can_be_constant_too() -> None:
    run = looked_at(distinct=1, mean=0.3)
    alone = [sample._replace(field="") for sample in run.inputs if sample.field == "0"]
    run.inputs.clear()
    run.inputs.extend(alone)
    assert constant_batches(run) is not None


def test_several_targets_that_differ_are_no_inputs() -> None:
    run = looked_at(distinct=1, mean=0.3)
    samples = list(run.inputs)
    run.inputs.clear()
    for sample in samples:
        names = ("1.0", "1.1") if sample.field == "1" else ("0",)
        run.inputs.extend(sample._replace(field=name) for name in names)
    assert constant_batches(run) is not None


@every_case("learned", [{}, {"distinct": 2}, {"distinct": 1, "samples": 2}, {"distinct": 1, "known": MISSING_INT}])
def test_batches_of_different_samples_are_not_constant(learned: dict[str, Any]) -> None:
    assert constant_batches(looked_at(**learned)) is None


def test_batches_that_differ_from_each_other_are_not_constant() -> None:
    run = view()
    for step in range(6):
        look(run, step, distinct=1, mean=0.1 * step)
    assert constant_batches(run) is None


def test_a_loss_that_stays_at_the_entropy_of_the_labels_is_a_guess() -> None:
    noise = np.random.default_rng(0).normal(0, 0.05, 512)
    run = looked_at(run=view(loss=2.3 + 1.5 * np.exp(-np.arange(512) / 30) + noise))
    found = guessing(run)
    assert found is not None and found.code == "not-learning"


@every_case(
    "loss",
    [
        2.3 * np.exp(-np.arange(512) / 200),
        np.linspace(2.6, 2.2, 512),
        np.where(np.arange(512) < 200, 0.5, 2.3),
        np.full(512, 1.9),
        np.full(512, np.nan),
    ],
    ids=["learns", "passes by", "was known once", "knows more", "nan"],
)
def test_a_loss_that_is_elsewhere_or_moves_is_no_guess(loss: np.ndarray) -> None:
    assert guessing(looked_at(run=view(loss=loss))) is None


@every_case(("distinct", "severity"), [(1, "warning"), (2, "warning"), (9, "info")])
def test_passes_that_begin_alike_are_unshuffled_and_sorted_where_batches_hold_few_labels(distinct: int, severity: str) -> None:
    found = unshuffled_data(looked_at(labels={"distinct": distinct}, repeats=3))
    assert found is not None and found.severity == severity


@every_case("repeats", [MISSING_INT, 0, 1])
def test_one_pass_that_begins_like_another_is_chance(repeats: int) -> None:
    assert unshuffled_data(looked_at(labels={"distinct": 1}, repeats=repeats)) is None


def falling(count: int = 400, since: int = 200) -> np.ndarray:
    loss = 2.3 * np.exp(-np.arange(count) / 80)
    loss[since:] = loss[since]
    return loss + np.random.default_rng(1).normal(0, 0.01, count)


def test_a_rate_that_falls_to_almost_nothing_at_once_stops_the_training() -> None:
    rate = np.where(np.arange(400) < 200, 1e-2, 1e-5)
    found = rate_dropped(view(400, lr=rate, loss=falling(), update_ratio=0.1 * rate))
    assert found is not None and (found.severity, found.onset) == ("warning", 200)


def test_a_rate_that_falls_when_all_is_learned_is_a_remark() -> None:
    rate, loss = np.where(np.arange(400) < 200, 1e-2, 1e-4), np.full(400, 0.5)
    found = rate_dropped(view(400, lr=rate, loss=loss, update_ratio=0.1 * rate))
    assert found is not None and found.severity == "info"


def test_a_rate_that_falls_to_a_thousandth_is_no_schedule_whatever_the_loss_did_before() -> None:
    steps, noise = np.arange(192), np.random.default_rng(4).normal(0, 0.4, 192)
    rate = np.minimum(steps / 96, 1.0) * 4e-4 * np.where(steps < 110, 1.0, 1e-3 * (192 - steps) / 82)
    found = rate_dropped(view(192, lr=rate, loss=19.4 + steps / 200 + noise, update_ratio=0.3 * rate))
    assert found is not None and (found.severity, found.onset) == ("warning", 110), "a fine-tuning, whose loss falls at its end"
    assert found.evidence["lr"] == rate[110]


def test_a_slow_fall_that_a_drop_of_the_rate_ended_counts_when_it_is_clear_of_the_noise() -> None:
    steps, noise = np.arange(500), np.random.default_rng(2).normal(0, 0.07, 500)
    rate = np.where(steps < 284, 5e-4, 5e-6)
    loss = 2.6 + 1.5 * np.exp(-np.minimum(steps, 284) / 40) + 0.0009 * (284 - np.minimum(steps, 284)) + noise
    found = rate_dropped(view(500, lr=rate, loss=loss, update_ratio=rate))
    assert found is not None and found.severity == "warning", "a language model: 2.7 to 2.6 in the steps before, and no further"
    settled = 2.6 + 1.5 * np.exp(-steps / 40) + noise
    found = rate_dropped(view(500, lr=rate, loss=settled, update_ratio=rate))
    assert found is not None and found.severity == "info"


def test_layers_that_are_trained_from_now_on_with_a_small_rate_still_learn() -> None:
    steps = np.arange(600)
    rate = np.where(steps < 200, 0.1, 5e-4)
    loss = np.where(steps < 200, 2.3 - 0.008 * steps, 0.7 * np.exp(-(steps - 200) / 120))
    found = rate_dropped(view(600, lr=rate, loss=loss, update_ratio=0.1 * rate))
    assert found is not None and found.severity == "info", "the last layer alone, then all of them: 0.7 became 0.03"


@every_case(
    "rate",
    [
        np.where(np.arange(400) < 200, 1e-2, 1e-3),
        1e-2 * (1 + np.cos(np.pi * np.arange(400) / 400)) / 2,
        1e-2 * 0.98 ** np.arange(400),
        np.where(np.arange(400) % 100 < 50, 1e-2, 1e-5),
        np.where((np.arange(400) >= 180) & (np.arange(400) < 200), 1.0, 1e-2),
        np.where(np.arange(400) < 370, 1e-2, 1e-5),
    ],
    ids=["step", "cosine", "exponential", "up and down", "a jump undone", "at the very end"],
)
def test_schedules_are_left_alone(rate: np.ndarray) -> None:
    assert rate_dropped(view(400, lr=rate, loss=falling(), update_ratio=0.1 * rate)) is None


def test_another_optimizer_with_a_rate_of_its_own_is_left_alone() -> None:
    rate = np.where(np.arange(400) < 200, 0.1, 5e-4)
    assert rate_dropped(view(400, lr=rate, loss=falling(), update_ratio=np.full(400, 1e-3))) is None


@every_case("begins", [0.3, 0.45, 0.6])
def test_a_leak_that_begins_in_the_middle_is_seen(begins: float) -> None:
    steps = np.arange(300)
    found = host_memory_growth(view(300, host_rss=(4e8 + 2e6 * np.maximum(0, steps - begins * 300)).astype(np.int64)))
    assert found is not None


def test_memory_that_rises_once_and_stays_is_no_leak() -> None:
    assert host_memory_growth(view(300, host_rss=np.where(np.arange(300) < 160, 4e8, 9e8).astype(np.int64))) is None


def test_memory_that_each_evaluation_adds_to_is_a_leak() -> None:
    run = view(240, host_rss=(4e8 + 3.2e7 * (np.arange(240) // 60)).astype(np.int64))
    run.evaluated.extend((60, 120, 180))
    found = host_memory_growth(run)
    assert found is not None and found.evidence["in_evaluation"] > 0.9


@every_case("rises", [(64e6, 1e6, 0.0), (2e6, 2e6, 2e6), (64e6, 64e6, -128e6)])
def test_an_evaluation_that_warms_up_or_gives_back_is_no_leak(rises: tuple[float, ...]) -> None:
    steps = np.arange(240)
    sizes = 4e8 + sum(rise * (steps >= at) for rise, at in zip(rises, (60, 120, 180), strict=True))
    run = view(240, host_rss=np.asarray(sizes).astype(np.int64))
    run.evaluated.extend((60, 120, 180))
    assert host_memory_growth(run) is None


def test_the_place_of_a_sample_in_the_data_set_is_neither_its_label_nor_an_input() -> None:
    def indexed(field: str, *, labels: float) -> RunView:
        run = looked_at({}, view(loss=labels), labels={"entropy": labels})
        for one in [one for one in run.inputs if one.field == "1"]:
            place = {"mean": 1200.0 if one.split == "train" else 128.0, "deviation": 700.0, "distinct": 32, "entropy": 6.9}
            run.inputs.append(one._replace(field=field, **place))
        return run

    for field in ("2", "index"):
        run = indexed(field, labels=2.3)
        assert preprocessing_mismatch(run) is None
        found = guessing(run)
        assert found is not None and found.evidence["entropy"] == 2.3
