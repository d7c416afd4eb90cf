"""Symptoms in the tables of a run: found where they are, not where they are not, and the same live and afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from every_case import every_case

from holdfast.detectors.finding import Finding
from holdfast.detectors.runs.constant_input import constant_input
from holdfast.detectors.runs.dead_units import dead_units, overwritten_layer
from holdfast.detectors.runs.gradient_vanishing import gradient_vanishing
from holdfast.detectors.runs.memory_growth import gpu_memory_growth, host_memory_growth
from holdfast.detectors.runs.oversized_weights import oversized_weights
from holdfast.detectors.runs.schedule_ended import schedule_ended
from holdfast.detectors.runs.slow_loading import slow_loading
from holdfast.detectors.runs.tiny_updates import tiny_updates
from holdfast.detectors.runs.unshuffled import unshuffled_data
from holdfast.detectors.runs.untrained import parameters_not_trained
from holdfast.detectors.runs.watch import RunWatch
from holdfast.diagnosis.diagnosis import diagnose
from holdfast.signals.run_view import BLOCKS, STEP_COLUMNS, Blocks, RunView
from holdfast.signals.schema import TABLES

Rows = dict[str, np.ndarray[Any, Any]]
RANDOM = np.random.default_rng(0)


def rows(count: int, **columns: Any) -> Rows:
    """Rows of `steps`; what is not given is missing."""
    kinds = {column.name: column.kind for column in TABLES["steps"].columns}
    found = {name: np.full(count, kinds[name].missing, kinds[name].dtype) for name in STEP_COLUMNS}
    found["step"] = np.arange(count)
    for name, values in columns.items():
        found[name][:] = values
    return found


def view(count: int = 512, **columns: Any) -> RunView:
    run = RunView()
    run.add_steps(rows(count, **columns))
    return run


def sampled(norms: dict[str, Callable[[], float]], *, samples: int = 6, run: RunView | None = None) -> RunView:
    run = run or view(128)
    for step in range(samples):
        for name, norm in norms.items():
            value = norm()
            run.add_parameter(10 * step, name, value, value / 2, 1.0)
    return run


def layers(*norms: float) -> dict[str, Callable[[], float]]:
    return {f"{i}.weight": lambda norm=norm: norm * RANDOM.uniform(0.5, 2) for i, norm in enumerate(norms)}  # type: ignore[misc]


def test_gradients_that_fade_from_layer_to_layer_vanish() -> None:
    found = gradient_vanishing(sampled(layers(*[10.0 ** (i - 8) for i in range(8)])))
    assert found is not None and found.evidence["ratio"] < 1e-3


@every_case("norms", [[1.0] * 8, [0.03, 0.1, 0.3, 1, 1, 1], [1e-9] * 6, [1e-6, 1.0]])
def test_gradients_of_one_size_or_small_all_over_do_not_vanish(norms: list[float]) -> None:
    assert gradient_vanishing(sampled(layers(*norms))) is None


def test_first_layers_without_any_gradient_are_dead() -> None:
    found = dead_units(sampled(layers(0.0, 0.0, 1.0)))
    assert found is not None and found.evidence["last_dead"] == "1"
    assert dead_units(sampled(layers(1.0, 0.0, 1.0))) is None, "something lives before it: an unused branch"
    assert dead_units(sampled(layers(0.0, 0.0, 0.0))) is None, "nothing lives: another matter"


@every_case(("newest", "dies"), [((0.0, 0.0, 1.0), True), ((0.0, 1.0, 1.0), False), ((0.0, 0.0, 0.0), False)])
@every_case("samples", [1, 2])  # a judge that looks now and then may find two where one would do
def test_several_layers_that_were_never_zero_have_died(newest: tuple[float, ...], dies: bool, samples: int) -> None:
    run = sampled(layers(1.0, 1.0, 1.0))
    for sample in range(samples):
        for name, norm in zip(list(run.parameters), newest, strict=True):
            run.add_parameter(1000 + 10 * sample, name, norm, norm, 1.0)
    found = dead_units(run)
    assert (found is not None) is dies
    assert found is None or (found.evidence["onset"], found.evidence["layers"]) == (1000, 2)


@every_case(("norm", "zero", "dies"), [(40.0, True, True), (1.1, True, False), (40.0, False, False)])
def test_a_layer_in_the_middle_is_dead_if_its_weights_were_overwritten(norm: float, zero: bool, dies: bool) -> None:
    run = sampled({"0.weight": lambda: 1.0, "1.weight": lambda: 1.0, "1.bias": lambda: 0.5, "2.weight": lambda: 1.0})
    now = {"0.weight": (1.0, 1.0), "1.weight": (0.0, 1.0), "1.bias": (0.0, norm), "2.weight": (1.0, 1.0)}
    for name, (gradient, weights) in now.items():
        run.add_parameter(100, name, gradient if zero else 1.0, gradient, weights)
    found = overwritten_layer(run)
    assert (found is not None) is dies, "one that merely has no gradient in one sample may be an expert that got no token"
    if found is not None:
        assert (found.evidence["parameter"], found.onset) == ("1.bias", 100)
        assert diagnose([found]).causes[0] == "weights-overwritten"
    assert dead_units(run) is None


def _first_layer(ratio: Callable[[], float]) -> RunView:
    run = view(128)
    for step in range(6):
        bias = RANDOM.uniform(0.5, 2)
        times = ratio()
        run.add_parameter(10 * step, "0.weight", bias * times, bias * times, 1.0)
        run.add_parameter(10 * step, "0.bias", bias, bias, 1.0)
    return run


def test_a_first_layer_that_sees_one_input_is_told_from_one_that_sees_many() -> None:
    found = constant_input(_first_layer(lambda: 3.0))
    assert found is not None and found.code == "constant-predictions"
    assert constant_input(_first_layer(lambda: 0.0)) is not None, "an input of zeros"
    assert constant_input(_first_layer(lambda: RANDOM.uniform(2.9, 3.1))) is None


def test_a_gradient_that_never_changes_says_nothing_about_the_input() -> None:
    assert constant_input(sampled({"0.weight": lambda: 3.0, "0.bias": lambda: 1.0})) is None


def _untrained(*ones: tuple[str, int], of: int = 6) -> Finding | None:
    run = view(200)
    for why, position in ones:
        run.add_untrained(1, f"{position}.weight", why, position, of)
    return parameters_not_trained(run)


def test_a_layer_that_no_optimizer_holds_behind_trained_ones_is_a_mistake() -> None:
    found = _untrained(("no-optimizer", 4), ("no-optimizer", 5))
    assert found is not None and found.severity == "warning" and found.evidence["count"] == 2


def test_an_optimizer_that_holds_no_parameter_of_the_model_is_a_mistake() -> None:
    found = _untrained(("no-optimizer", 0), ("no-optimizer", 1), of=2)
    assert found is not None and found.severity == "warning" and found.evidence["count"] == 2


def test_an_optimizer_whose_parameters_get_no_gradient_is_a_mistake() -> None:
    found = _untrained(("no-gradient", 0), ("no-gradient", 1))
    assert found is not None and found.severity == "warning"


def test_last_layers_without_a_gradient_are_a_head_that_the_loss_does_not_use() -> None:
    found = _untrained(("no-gradient", 4), ("no-gradient", 5))
    assert found is not None and found.severity == "info" and found.evidence["why"] == "unused-head"
    for others in ([3, 4], [1, 4, 5], [3, 4, 5]):  # something behind them is trained; something else is not; half of the model
        found = _untrained(*(("no-gradient", position) for position in others))
        assert found is not None and found.severity == "warning", others


def test_the_value_network_of_a_policy_that_is_cloned_is_not_used_either() -> None:
    found = _untrained(*(("no-gradient", position) for position in (5, 6, 7, 8, 11, 12)), of=13)
    assert found is not None and found.severity == "info" and found.evidence["why"] == "unused-head"


def test_last_layers_that_lost_their_gradients_are_no_unused_head() -> None:
    run = sampled({f"{position}.weight": lambda: 1.0 for position in range(6)})
    run.add_untrained(1, "5.weight", "no-gradient", 5, 6)
    found = parameters_not_trained(run)
    assert found is not None and found.severity == "warning"


def test_a_layer_that_is_left_out_of_some_steps_is_no_mistake() -> None:
    run = sampled({f"{position}.weight": lambda: 1.0 for position in (0, 1, 3, 4, 5)})
    steps = list(run.parameters["0.weight"].steps)
    run.add_untrained(steps[-3], "2.weight", "no-gradient", 2, 6)
    assert run.step - steps[-3] < 48 or parameters_not_trained(run) is None, "three samples are few"
    run.add_untrained(steps[0], "2.weight", "no-gradient", 2, 6)
    found = parameters_not_trained(run)
    assert found is not None and found.severity == "warning"


def test_a_module_that_takes_no_part_is_a_remark() -> None:
    found = _untrained(("unused", 0), ("unused", 1), ("unused", 2))
    assert found is not None and found.severity == "info" and found.evidence["why"] == "unused"


@every_case("why", ["frozen", "no-optimizer"])
def test_first_layers_left_alone_are_a_remark(why: str) -> None:
    found = _untrained((why, 0), (why, 1))
    assert found is not None and found.severity == "info"


def test_two_frozen_constants_of_a_large_model_are_not_worth_a_remark() -> None:
    run = view(200)
    for position in (17, 18):
        run.add_untrained(1, f"decoder.{position}", "frozen", position, 446)
    assert parameters_not_trained(run) is None


def test_gradients_that_are_always_zero_behind_others_are_none() -> None:
    found = parameters_not_trained(sampled({"0.weight": lambda: 1.0, "1.weight": lambda: 0.0, "2.weight": lambda: 1.0}))
    assert found is not None and found.severity == "warning" and found.evidence["parameters"] == ["1.weight"]
    assert parameters_not_trained(sampled({"0.weight": lambda: 0.0, "1.weight": lambda: 1.0})) is None  # dead: another finding


def test_a_parameter_that_is_trained_after_all_is_no_finding() -> None:
    run = view(200)
    run.add_untrained(1, "a", "no-gradient", 0, 2)
    run.add_untrained(50, "a", "trained", 0, 2)
    assert parameters_not_trained(run) is None


def test_updates_too_small_to_move_the_loss() -> None:
    flat = 2.3 + 0.01 * RANDOM.standard_normal(512)
    found = tiny_updates(view(loss=flat, update_ratio=1e-7))
    assert found is not None and found.evidence["classes"] == 10
    assert tiny_updates(view(loss=flat, update_ratio=1e-3)) is None
    assert tiny_updates(view(loss=np.linspace(2.3, 0.1, 512), update_ratio=1e-7)) is None


def test_a_schedule_that_ends_while_the_loss_falls() -> None:
    falls = np.concatenate([np.linspace(2.3, 1.2, 200), np.full(312, 1.2)])
    done = np.concatenate([np.linspace(2.3, 0.2, 40), np.full(472, 0.2)])
    rate = np.maximum(0.0, 1 - np.arange(512) / 200)
    found = schedule_ended(view(loss=falls, lr=rate))
    assert found is not None and 195 <= found.onset <= 201
    assert schedule_ended(view(loss=done, lr=rate)) is None, "it had learned all it could"
    assert schedule_ended(view(loss=np.linspace(2.3, 1.2, 512), lr=1 - np.arange(512) / 512)) is None, "ends with the run"


@every_case(("detector", "column"), [(host_memory_growth, "host_rss"), (gpu_memory_growth, "gpu_allocated")])
def test_memory_that_grows_is_told_from_memory_that_levels_off(
    detector: Callable[[RunView], Finding | None], column: str
) -> None:
    steps, noise = np.arange(2000), 1e6 * RANDOM.standard_normal(2000)
    grows, levels = 1e9 + 5e5 * steps + noise, 1e9 + 8e8 * (1 - np.exp(-steps / 200)) + noise
    found = detector(view(2000, **{column: grows}))
    assert found is not None and found.severity == "warning" and found.evidence["bytes_per_step"] == pytest.approx(5e5, rel=0.2)
    assert detector(view(2000, **{column: levels})) is None
    cache = detector(view(2000, **{column: grows}, epoch=0))
    assert cache is not None and cache.severity == "info", "a cache that fills in the first pass looks the same"


def test_memory_that_only_evaluations_take_is_seen_in_a_short_run_whose_allocator_gives_some_back() -> None:
    grows = (568, 908, 904, 957, 974, 995, 1018, 1003, 1053, 1070, 1053, 1104)  # MB, in an epoch each: YOLO, 16 MB kept each time
    healthy = (825, 860, 931, 898, 936, 936, 942, 946, 911, 947, 977, 910)
    for levels in (grows, healthy):
        run = view(12 * 9, host_rss=np.repeat(levels, 9) * 1e6)
        run.evaluated.extend(range(9, 12 * 9, 9))
        found = host_memory_growth(run)
        assert (found is not None) is (levels is grows)
        assert found is None or found.evidence["in_evaluation"] > 0.8


def test_waiting_for_data_counts_when_it_is_long() -> None:
    found = slow_loading(view(data_seconds=0.02, step_seconds=0.05, epoch=0))
    assert found is not None and found.evidence["fraction"] == pytest.approx(0.4)
    assert slow_loading(view(data_seconds=0.0005, step_seconds=0.001, epoch=0)) is None, "any loader costs that"
    assert slow_loading(view(data_seconds=0.005, step_seconds=0.05, epoch=0)) is None


def test_a_cpu_that_always_read_by_turns_is_a_remark_and_one_that_came_to_it_is_not() -> None:
    always = slow_loading(view(data_seconds=0.02, step_seconds=0.07, epoch=0))
    assert always is not None and always.severity == "info"
    waits = np.where(np.arange(512) < 160, 0.002, 0.03)
    later = slow_loading(view(data_seconds=waits, step_seconds=0.05 + waits, epoch=0))
    assert later is not None and later.severity == "warning" and later.evidence["fraction"] < 0.4
    most = slow_loading(view(data_seconds=0.04, step_seconds=0.07, epoch=0))
    assert most is not None and most.severity == "warning"


def waited_for(run: RunView, seconds: tuple[float, ...]) -> RunView:
    """The same with workers of which each was waited for so long, every fifty steps or about once a second."""
    run.workers = len(seconds)
    run.waits.extend((step, worker, each) for step in range(50, 512, 50) for worker, each in enumerate(seconds))
    return run


def test_one_slow_worker_is_told_from_all_of_them() -> None:
    waits = np.where(np.arange(512) % 4 == 2, 0.1, 0.001)
    one = waited_for(view(data_seconds=waits, step_seconds=0.05, epoch=0), (0.01, 0.01, 0.8, 0.01))
    found = slow_loading(one)
    assert found is not None and found.evidence["slow_worker"] == 2
    one.ready.extend([(500, 6), (505, 5), (510, 6)])  # what the other three have made ahead
    found = slow_loading(one)
    assert found is not None and found.evidence["slow_worker"] == 2
    one.ready.extend([(511, 0)] * 6)  # all are equally slow and in step: the first of each round is waited for, nobody is ahead
    found = slow_loading(one)
    assert found is not None and "slow_worker" not in found.evidence
    later = waited_for(view(data_seconds=np.where(np.arange(512) < 300, 0.0, waits), step_seconds=0.05, epoch=0), (0.01, 0.8))
    later.ready.extend([(step, 4) for step in range(100, 300, 20)] + [(step, 0) for step in range(320, 512, 40)])
    found = slow_loading(later)
    assert found is not None and "slow_worker" not in found.evidence, "who was ahead before the waiting began says nothing"
    every = view(data_seconds=RANDOM.uniform(0.01, 0.05, 512), step_seconds=0.06, epoch=0)
    found = slow_loading(waited_for(every, (0.2, 0.3, 0.25, 0.25)))
    assert found is not None and "slow_worker" not in found.evidence


def test_a_slow_worker_is_told_where_each_step_draws_a_batch_of_every_worker() -> None:
    both = view(data_seconds=0.16, step_seconds=0.2, epoch=0)  # accumulation over two batches: every step waits as long
    found = slow_loading(waited_for(both, (0.02, 0.8)))
    assert found is not None and found.evidence["slow_worker"] == 1


def test_the_first_batches_of_short_passes_are_no_slow_loading() -> None:
    place = np.tile(np.arange(32), 16)
    starts = view(data_seconds=np.where(place < 2, 0.4, 0.001), step_seconds=0.05, epoch=np.repeat(np.arange(16), 32))
    starts.workers = 2
    assert slow_loading(starts) is None, "workers that start with every pass are waited for once"


@every_case("at", [0, 160, 400])
def test_slow_loading_says_when_it_began(at: int) -> None:
    waits = np.where(np.arange(512) < at, 0.0005, 0.06) * RANDOM.uniform(0.7, 1.3, 512)
    found = slow_loading(view(data_seconds=waits, step_seconds=0.01 + waits, epoch=0))
    assert found is not None and at <= found.evidence["onset"] <= at + 16


def test_one_slow_worker_is_told_also_after_waiting_was_told() -> None:
    waits = np.where(np.arange(1024) < 512, 0.02, np.where(np.arange(1024) % 4 == 2, 0.2, 0.0))
    every, watch, told = rows(1024, data_seconds=waits, step_seconds=0.05 + waits, epoch=0), RunWatch(), []
    watch.view.workers = 4
    for start in range(0, 1024, 64):
        late = (0.0, 0.0, 3.2, 0.0) if start >= 512 else (0.3, 0.3, 0.4, 0.3)
        watch.view.waits.extend((start, worker, each) for worker, each in enumerate(late))
        if watch.add({name: values[start : start + 64] for name, values in every.items()}):
            told += [finding for finding in watch.ask() if finding.code == "slow-loading"]
    assert [finding.evidence.get("slow_worker") for finding in told] == [None, 2]


def _passes(profile: Callable[[], np.ndarray[Any, Any]], *, batches: int = 40) -> RunView:
    losses = np.concatenate([profile() for _ in range(8)])
    return view(8 * batches, loss=losses, epoch=np.repeat(np.arange(8), batches), lr=0.1)


def test_sorted_data_is_told_from_a_fixed_order_and_from_shuffled_data() -> None:
    place, fixed = np.arange(40), RANDOM.uniform(0.5, 1.5, 40)
    sawtooth = _passes(lambda: 2.0 - 0.3 * (place % 5) + 0.05 * RANDOM.standard_normal(40))
    found = unshuffled_data(sawtooth)
    assert found is not None and found.severity == "warning"
    found = unshuffled_data(_passes(lambda: fixed + 0.1 * RANDOM.standard_normal(40)))
    assert found is not None and found.severity == "info"
    assert unshuffled_data(_passes(lambda: RANDOM.uniform(0.5, 1.5, 40))) is None


def test_a_column_of_any_length_is_kept_in_a_few_blocks() -> None:
    blocks = Blocks()
    for value in range(10_000):
        blocks.add(float(value))
    assert len(blocks.means) < BLOCKS and np.all(np.diff(blocks.means) > 0)


@every_case("at_a_time", [1, 7, 64, 5000])
def test_the_same_is_found_however_the_rows_come(at_a_time: int) -> None:
    random = np.random.default_rng(3)
    count = 5000
    every = rows(
        count,
        loss=2.3 + 0.01 * random.standard_normal(count),
        lr=np.maximum(0, 1 - np.arange(count) / 300),
        update_ratio=1e-7,
        data_seconds=0.03,
        step_seconds=0.05,
        host_rss=1e9 + 1e6 * np.arange(count),
    )
    assert _told(every, at_a_time) == _told(every, 256)


def _told(every: Rows, at_a_time: int) -> list[dict[str, Any]]:
    watch, told, at = RunWatch(), [], 0
    while at < len(every["step"]):
        end = at + min(at_a_time, watch.room())
        if watch.add({name: values[at:end] for name, values in every.items()}):
            told += [finding.as_row() for finding in watch.ask()]
        at = end
    assert {one["code"] for one in told} >= {"not-learning", "slow-loading", "host-memory-growth"}
    return told


def test_a_machine_that_was_busy_for_a_while_is_no_slow_loading() -> None:
    busy = np.where(np.arange(512) < 200, 0.05, 0.001)
    assert slow_loading(view(data_seconds=busy, step_seconds=0.02 + busy, epoch=0)) is None
    assert slow_loading(view(data_seconds=busy[::-1], step_seconds=0.02 + busy[::-1], epoch=0)) is not None
    assert slow_loading(view(64, data_seconds=0.05, step_seconds=0.07, epoch=0)) is None, "too early to tell"


def test_a_single_pause_is_no_slow_loading_and_one_that_comes_again_is() -> None:
    waits = np.full(512, 0.0006)
    waits[400] = 3.0  # the machine did something else
    assert slow_loading(view(data_seconds=waits, step_seconds=0.02 + waits, epoch=0)) is None
    waits[::80] = 3.0  # a new file with every eightieth batch
    assert slow_loading(view(data_seconds=waits, step_seconds=0.02 + waits, epoch=0)) is not None


def test_a_process_that_a_busy_machine_interrupts_everywhere_is_no_slow_loading() -> None:
    pauses = np.random.default_rng(0).random((2, 512)) * [[0.05], [0.1]]
    waits = np.where(np.arange(512) % 4 == 0, pauses[0], 0.001)  # as it was recorded at 15 processes a core
    assert slow_loading(view(data_seconds=waits, step_seconds=0.003 + pauses[1] / 5 + waits, epoch=0)) is None
    assert slow_loading(view(data_seconds=waits, step_seconds=0.015 + waits, epoch=0)) is not None


def weighed(*norms: float, loss: Any = 0.3) -> RunView:
    """A run with the weight norms of one layer, ten steps apart, beside one that is as usual."""
    run = view(128, loss=loss)
    for number, norm in enumerate(norms):
        run.add_parameter(10 * number, "body.weight", 1.0, 0.5, 3.0)
        run.add_parameter(10 * number, "head.weight", 1.0, 0.5, norm)
    return run


def test_a_weight_too_large_to_be_squared_is_found_though_the_loss_does_not_show_it() -> None:
    found = oversized_weights(weighed(9.2, 9.6, np.inf, np.inf))
    assert found is not None and (found.code, found.severity) == ("non-finite-weights", "critical")
    named = {name: found.evidence[name] for name in ("parameter", "onset", "seen_at", "weight_norm_before")}
    assert named == {"parameter": "head.weight", "onset": 11, "seen_at": 20, "weight_norm_before": 9.6}
    assert diagnose([found]).causes[0] == "weights-overwritten"


@every_case(
    "run",
    [
        weighed(9.2, 9.6, 1e30),
        weighed(np.inf, np.inf, np.inf),  # it began like that
        weighed(9.2, np.inf, 9.6),  # and is over
        weighed(9.2, 9.6, np.inf, loss=np.inf),  # has findings of its own
        weighed(9.2),
    ],
    ids=["large", "always", "over", "loss", "one"],
)
def test_no_weight_is_called_too_large_without_need(run: RunView) -> None:
    assert oversized_weights(run) is None
