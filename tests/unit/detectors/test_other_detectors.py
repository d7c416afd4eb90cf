from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from every_case import every_case

from holdfast.detectors.clipping import clipping_every_step, clipping_never
from holdfast.detectors.evaluations import lasting_fall
from holdfast.detectors.finding import Finding, plain
from holdfast.detectors.gradient_explosion import gradient_explosion
from holdfast.detectors.metric_collapse import metric_collapse
from holdfast.detectors.metric_decline import metric_decline
from holdfast.detectors.metric_plateau import metric_plateau
from holdfast.detectors.non_finite_weights import non_finite_weights
from holdfast.detectors.scaler import scaler_collapse
from holdfast.diagnosis.diagnosis import diagnose
from holdfast.signals.metric_direction import better
from holdfast.signals.schema import MISSING
from holdfast.signals.view import Evaluation, SignalView

View = Callable[..., SignalView]
Replay = Callable[..., list[Finding]]


def noise(seed: int, count: int, level: float = 1.0, spread: float = 0.3) -> Any:
    return level * np.exp(spread * np.random.default_rng(seed).standard_normal(count))


def evaluations(name: str, *values: float, split: str = "val", loss: Any = None, **more: Any) -> SignalView:
    made = [Evaluation(100 * index, split, name, value) for index, value in enumerate(values)]
    steps = np.arange(100 * len(values))
    return SignalView({"step": steps, "loss": np.ones(len(steps)) if loss is None else loss, **more}, evaluations=made)


@every_case("seed", range(12))
def test_a_spike_stays_silent_on_ordinary_noise_and_long_tails(replay: Replay, seed: int) -> None:
    assert replay(loss=noise(seed, 1000, spread=[0.05, 0.5, 1.5][seed % 3]), grad_norm=noise(seed + 99, 1000, spread=1.0)) == []


@every_case(("lasts", "recovered"), [(8, True), (500, False)])
def test_a_spike_after_which_the_loss_creeps_back_has_recovered(replay: Replay, lasts: float, recovered: bool) -> None:
    steps = np.arange(400)
    loss = 0.003 + 0.2 * np.exp(-steps / 10) + np.where(steps > 300, 0.02 * np.exp(-(steps - 300) / lasts), 0)
    loss[300] = 0.4
    (spike,) = replay(loss=loss * noise(0, 400, 1.0, 0.03))
    assert (spike.code, spike.evidence["recovered"]) == ("loss-spike", recovered)


@every_case("seed", range(5))
def test_a_spike_while_the_run_still_learns_quickly_is_seen(replay: Replay, seed: int) -> None:
    loss = (0.2 + 2.1 * np.exp(-np.arange(200) / 20)) * noise(seed, 200, 1.0, 0.3)
    assert replay(loss=loss) == []
    loss[74] = 10.3
    (spike,) = replay(loss=loss)
    assert (spike.code, spike.step) == ("loss-spike", 74)


def test_a_spike_says_how_high_and_how_soon_it_was_over(replay: Replay) -> None:
    loss = noise(0, 300, 2.0, 0.1)
    loss[200:203] = 11.0
    (spike,) = replay(loss=loss)
    assert (spike.code, spike.severity, spike.step, spike.evidence["loss"]) == ("loss-spike", "info", 200, 11.0)
    assert spike.evidence["recovered"] and spike.evidence["within_steps"] == 3


def test_norms_that_stay_high_while_the_loss_rises_are_an_explosion(view: View) -> None:
    norm, loss = noise(0, 300), noise(1, 300, 0.5, 0.1)
    norm[285:], loss[285:] = 60.0, 1.4
    found = gradient_explosion(view(grad_norm=norm, loss=loss, lr=np.full(300, 0.1)))
    assert found is not None and found.onset == 285 and found.severity == "critical"
    assert found.evidence["times"] == pytest.approx(60, rel=0.2)


@every_case("loss_then", [0.5, 0.1])
def test_norms_that_grow_while_the_loss_does_not_are_none(view: View, loss_then: float) -> None:
    norm, loss = noise(0, 300), noise(1, 300, 0.5, 0.1)
    norm[285:], loss[285:] = 60.0, loss_then
    assert gradient_explosion(view(grad_norm=norm, loss=loss)) is None


@every_case("dead", [{"loss": np.nan}, {"non_finite": 2}, {"skipped": 1}])
def test_ten_steps_without_a_finite_number_are_a_dead_model(view: View, dead: dict[str, Any]) -> None:
    columns = {"loss": np.ones(50), "non_finite": np.zeros(50), "skipped": np.zeros(50), "scale": np.full(50, MISSING)}
    for name, value in dead.items():
        columns[name][38:] = value
    found = non_finite_weights(view(**columns))
    assert found is not None and (found.onset, found.evidence["steps_in_a_row"]) == (38, 12)
    assert "lr_jumped_at" not in found.evidence
    jumped = non_finite_weights(view(**columns, lr=np.where(np.arange(50) < 35, 0.1, 10.0)))
    assert jumped is not None and jumped.evidence["lr_jumped_at"] == 35, "a roll-back must keep it from jumping again"
    columns["loss"][45], columns["non_finite"][45], columns["skipped"][45] = 1.0, 0, 0
    assert non_finite_weights(view(**columns)) is None


def test_a_scaler_that_looks_for_its_scale_is_no_dead_model(view: View) -> None:
    scale = 65536.0 / 2.0 ** np.arange(20)
    columns = {"loss": np.ones(20), "non_finite": np.ones(20), "skipped": np.ones(20), "scale": scale}
    assert non_finite_weights(view(**columns)) is None


def test_a_scale_below_one_is_a_collapse_and_bf16_is_proposed(view: View) -> None:
    scale, skipped = np.full(300, 1024.0), np.zeros(300)
    assert scaler_collapse(view(scale=scale, skipped=skipped)) is None
    skipped[100::4] = 1
    found = scaler_collapse(view(scale=scale, skipped=skipped))
    assert found is not None and found.severity == "warning" and found.evidence["skipped_fraction"] == pytest.approx(0.25)
    scale[-1] = 0.5
    found = scaler_collapse(view(scale=scale, skipped=skipped))
    assert found is not None and found.severity == "critical" and "bfloat16" in found.evidence["proposal"]


def test_the_first_skipped_steps_of_a_scaler_are_how_it_begins(view: View) -> None:
    skipped = np.zeros(120)
    skipped[:12] = 1
    assert scaler_collapse(view(scale=np.full(120, 16.0), skipped=skipped)) is None


def test_clipping_on_every_step_suggests_two_to_five_times_the_usual_norm(view: View) -> None:
    found = clipping_every_step(view(grad_norm=noise(0, 300, 0.1, 0.2), clip_norm=np.full(300, 0.01)))
    assert found is not None and found.severity == "info"
    assert found.evidence["suggested"] == pytest.approx([0.2, 0.5], rel=0.1)
    assert clipping_every_step(view(grad_norm=noise(0, 300), clip_norm=np.full(300, 1.0))) is None
    assert clipping_every_step(view(grad_norm=noise(0, 300), clip_norm=np.full(300, MISSING))) is None


def test_clipping_that_never_acts_is_said_after_a_long_time(view: View) -> None:
    found = clipping_never(view(grad_norm=noise(0, 2100, 0.5, 0.2), clip_norm=np.full(2100, 50.0)))
    assert found is not None and found.code == "clipping-never" and found.evidence["clipped_fraction"] == 0
    assert clipping_never(view(grad_norm=noise(0, 2100, 5.0), clip_norm=np.full(2100, 10.0))) is None


@every_case(
    ("name", "way"),
    [
        ("loss", "lower"),
        ("val/acc", "higher"),
        ("mAP50", "higher"),
        ("top-1 error", "lower"),
        ("reward", None),
        ("lr", None),
        ("psnr/std", None),
    ],
)
def test_the_name_says_which_way_is_better(name: str, way: str | None) -> None:
    assert better(name) == way


def test_three_evaluations_in_a_row_that_are_worse_are_a_decline() -> None:
    found = metric_decline(evaluations("accuracy", 0.5, 0.52, 0.54, 0.55, 0.56, 0.52, 0.47, 0.4))
    assert found is not None and found.severity == "warning"
    assert (found.onset, found.evidence["best"], found.evidence["best_step"]) == (500, 0.56, 400)
    assert metric_decline(evaluations("loss", 0.9, 0.8, 0.75, 0.7, 0.72, 0.8, 0.95)) is not None
    near_its_best = (0.66, 0.44, 0.21, 0.12, 0.109, 0.11, 0.108, 0.106, 0.102, 0.1028, 0.1036, 0.1078, 0.1155)
    assert metric_decline(evaluations("loss", *near_its_best)) is None, "a fiftieth of what was learned"
    late = evaluations("loss", 0.0003, 0.0012, 0.0032, 0.0044, loss=np.geomspace(1.4, 0.0003, 400))
    assert metric_decline(late) is None, "all was learned before the first evaluation"
    assert metric_decline(evaluations("accuracy", 0.5, 0.52, 0.54, 0.55, 0.56, 0.52, 0.47, 0.48)) is None
    assert metric_decline(evaluations("reward", 500, 400, 300, 200, 100)) is None
    assert metric_decline(evaluations("loss", 0.5, 0.6, 0.7, 0.8, 0.9, split="train")) is None


def test_recall_that_falls_while_the_other_metrics_rise_is_no_decline() -> None:
    recall, rising = (0.5, 0.55, 0.6, 0.65, 0.7, 0.63, 0.5, 0.4), (0.1, 0.12, 0.15, 0.2, 0.22, 0.27, 0.3, 0.34)

    def found(**series: tuple[float, ...]) -> bool:
        made = [Evaluation(100 * i, "val", name, values[i]) for i in range(8) for name, values in series.items()]
        return metric_decline(SignalView({"step": np.arange(800), "loss": np.ones(800)}, evaluations=made)) is not None

    assert not found(recall=recall, precision=rising)
    assert found(recall=recall, precision=rising[::-1])
    assert not found(recall=recall, precision=rising[::-1], map=rising), "of a detector average precision counts"
    assert found(recall=rising, precision=rising, map=recall)


@every_case("seed", range(20))
def test_evaluations_that_only_scatter_are_hardly_ever_a_decline(seed: int) -> None:
    values = 0.7 + 0.01 * np.random.default_rng(seed).standard_normal(30)
    found = [metric_decline(evaluations("accuracy", *values[:count])) for count in range(4, 31)]
    assert sum(one is not None for one in found) <= 1


def test_what_a_warm_restart_costs_is_no_decline() -> None:
    values = (0.54, 0.29, 0.18, 0.17, 0.16, 0.15, 0.145, 0.143, 0.144, 0.16, 0.19)
    count = len(evaluations("loss", *values).column("step"))
    cosine = 0.5 + 0.5 * np.cos(np.linspace(0, np.pi, count))
    restarts = np.where(np.arange(count) < 0.75 * count, cosine, 1.0)
    assert metric_decline(evaluations("loss", *values, lr=restarts)) is None
    assert metric_decline(evaluations("loss", *values, lr=cosine)) is not None
    assert metric_decline(evaluations("loss", *values, lr=3 * restarts - 2 * cosine)) is not None, "higher than ever"


def test_a_metric_that_was_never_good_does_not_collapse() -> None:
    early = (0.0, 2.7e-4, 1.4e-3, 1.7e-2, 1.6e-2, 5e-4, 0.0)  # mAP of a detector in its first epochs from scratch
    assert metric_collapse(evaluations("mAP", *early)) is None
    assert metric_decline(evaluations("mAP", *early)) is None
    assert lasting_fall(early, "higher") is None
    assert metric_collapse(evaluations("mAP", *(10 * value for value in early))) is not None


def test_a_metric_that_is_suddenly_worth_nothing_is_a_collapse_once_it_is_sure() -> None:
    good = (0.5, 0.6, 0.64, 0.64, 0.63)
    assert metric_collapse(evaluations("mAP", *good, 0.002)) is None  # one evaluation may be batch normalisation
    found = metric_collapse(evaluations("mAP", *good, 0.002, 0.003))
    assert found is not None and (found.onset, found.evidence["before"]) == (401, 0.63)
    loss = np.ones(600)
    loss[470:] = 3.0
    assert metric_collapse(evaluations("mAP", *good, 0.002, loss=loss)) is not None
    assert metric_collapse(evaluations("mAP", *good, 0.3, 0.3)) is None


def test_a_loss_that_jumps_while_the_other_metrics_rise_is_no_collapse() -> None:
    values = {  # a detector whose boxes have hardly any loss until it finds its first objects; nor have their classes
        "map50": (0.0, 0.0, 0.0, 0.0, 0.0, 0.003),
        "recall": (0.0, 0.0, 0.0, 0.0, 0.0, 0.06),
        "box_loss": (0.106, 0.043, 0.012, 0.007, 5.2, 2.9),
        "cls_loss": (0.46, 0.42, 0.41, 0.40, 4.6, 4.0),
        "dfl_loss": (0.18, 0.07, 0.06, 0.05, 2.7, 2.3),
    }
    made = [Evaluation(100 * i, "val", name, all_of[i]) for i in range(6) for name, all_of in values.items()]
    columns = {"step": np.arange(600), "loss": np.ones(600)}
    assert metric_collapse(SignalView(columns, evaluations=made)) is None
    alone = [one for one in made if one.name == "box_loss"]
    assert metric_collapse(SignalView(columns, evaluations=alone)) is not None


def test_precision_of_a_few_boxes_falls_when_a_detector_begins_to_find_many() -> None:
    values = {
        "metrics/precision(B)": (0.0, 0.0, 0.0, 0.69, 0.68, 0.004, 0.004),
        "metrics/mAP50(B)": (0.0, 0.0, 0.002, 0.008, 0.002, 0.167, 0.065),
        "metrics/mAP50-95(B)": (0.0, 0.0, 0.0, 0.001, 0.0002, 0.041, 0.01),
        "val/box_loss": (6.9, 6.9, 5.4, 4.7, 4.5, 5.2, 5.0),
    }
    made = [Evaluation(100 * i, "val", name, all_of[i]) for i in range(7) for name, all_of in values.items()]
    assert metric_collapse(SignalView({"step": np.arange(700), "loss": np.ones(700)}, evaluations=made)) is None
    alone = [one for one in made if "precision" in one.name]
    assert metric_collapse(SignalView({"step": np.arange(700), "loss": np.ones(700)}, evaluations=alone)) is not None


@every_case("detector", [metric_collapse, metric_decline])
def test_losses_of_a_detector_that_has_found_nothing_yet_are_not_judged(
    detector: Callable[[SignalView], Finding | None],
) -> None:
    values = {  # YOLO from scratch, in good health: hardly any loss of boxes until it assigns boxes to objects
        "map50": (0.0,) * 7,
        "box_loss": (0.09, 0.05, 0.02, 0.01, 0.03, 0.096, 3.9),
        "cls_loss": (2.07, 1.9, 1.7, 1.6, 1.5, 1.47, 3.8),
    }
    for best, is_judged in ((0.0, False), (0.3, True)):
        series = {**values, "map50": (0.0, 0.1, best, best, best, 0.9 * best, 0.8 * best)} if best else values
        made = [Evaluation(100 * i, "val", name, all_of[i]) for i in range(7) for name, all_of in series.items()]
        loss = np.where(np.arange(700) < 560, 1.0, 3.0) + 0.01 * np.random.default_rng(0).standard_normal(700)
        assert (detector(SignalView({"step": np.arange(700), "loss": loss}, evaluations=made)) is not None) is is_judged


@every_case(("at", "jumped"), [(410, True), (470, True), (300, False)])
def test_a_collapse_says_that_the_rate_had_jumped_since_the_last_good_evaluation(at: int, jumped: bool) -> None:
    rates = np.where(np.arange(700) < at, 0.1, 10.0)
    found = metric_collapse(evaluations("mAP", 0.5, 0.6, 0.64, 0.64, 0.63, 0.002, 0.003, lr=rates))
    assert found is not None and ("lr_jumped_at" in found.evidence) is jumped
    assert found.evidence.get("lr_before") == (pytest.approx(0.1) if jumped else None)


@every_case(("at", "jumped"), [(700, False), (300, False), (430, True), (690, False)])
def test_a_collapse_says_that_the_weights_had_jumped_since_the_last_good_evaluation(at: int, jumped: bool) -> None:
    steps = np.arange(700)
    norm, ratio = np.where(steps % 12 == 0, 10 + steps / 700, MISSING), np.where(steps % 12 == 0, 1e-4, MISSING)
    norm[steps >= at] *= 0.8  # normalisation layers and biases hold most of it
    found = metric_collapse(evaluations("mAP", 0.5, 0.6, 0.64, 0.64, 0.63, 0.002, 0.003, weight_norm=norm, update_ratio=ratio))
    assert found is not None and ("weight_norm" in found.evidence) is jumped
    assert (diagnose([found]).causes[0] == "weights-overwritten") is jumped


def test_a_held_out_loss_that_is_twice_not_finite_is_a_collapse() -> None:
    found = metric_collapse(evaluations("loss", 7.0, 6.8, np.nan, np.nan))
    assert found is not None and (found.onset, found.evidence["before"]) == (101, 6.8)
    assert metric_collapse(evaluations("loss", 7.0, 6.8, np.nan)) is None, "one batch may overflow"
    assert metric_collapse(evaluations("loss", np.nan, np.nan, np.nan)) is None, "it never was a number"
    assert metric_collapse(evaluations("accuracy", 0.7, 0.8, np.nan, np.nan)) is None, "a mean of nothing"


def test_a_held_out_loss_back_at_the_beginning_is_a_collapse() -> None:
    assert metric_collapse(evaluations("loss", 2.3, 1.0, 0.5, 0.4, 0.4, 2.3, 2.4)) is not None
    assert metric_collapse(evaluations("loss", 2.3, 1.0, 0.5, 0.4, 0.4, 0.9, 1.0)) is None


def test_the_evaluations_since_the_best_are_counted() -> None:
    found = metric_plateau(evaluations("loss", 1.0, 0.5, 0.6, 0.6, 0.7))
    assert found is not None and (found.evidence["evaluations"], found.evidence["best_step"]) == (3, 100)
    assert metric_plateau(evaluations("loss", 1.0, 0.9, 0.8)) is None


def test_a_finding_is_a_row_of_plain_values() -> None:
    row = Finding("loss-spike", step=3, evidence={"loss": np.float64(1.23456789), "n": np.int64(2), "bad": np.inf}).as_row()
    assert row == {
        "code": "loss-spike",
        "severity": "warning",
        "step": 3,
        "evidence": {"loss": 1.23457, "n": 2, "bad": "inf"},
    }
    assert plain((np.bool_(True), [1.0])) == [True, [1.0]]
