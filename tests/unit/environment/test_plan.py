"""From a few measured batches to what fits: the line, the cards, the levers."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.environment.plan.fit import Line, Point, fit
from holdfast.environment.plan.measuring import Facts
from holdfast.environment.plan.options import GIB, host_need, levers, rounded_down, what_fits

MB = 1 << 20


def on_a_line(*batches: int, fixed: int = 500 * MB, each: int = 10 * MB) -> list[Point]:
    return [Point(batch=batch, peak=fixed + each * batch) for batch in batches]


def facts(**changed: Any) -> Facts:
    row = {"shape": [3, 64, 64], "optimizer": 200 * MB, "parameters": 100 * MB, "gradients": 100 * MB, "host": GIB, "others": 0}
    row |= {"total": 24 * GIB, "device": "a card"}
    line = fit(on_a_line(8, 16, 32))
    usual: dict[str, Any] = {
        "line": line, "lines": {"as written": line}, "points": (), "row": row, "own_batch": 64, "context": 400 * MB,
    }  # fmt: skip
    return Facts(**{**usual, **changed})


def test_a_batch_that_was_never_run_is_predicted_from_the_line() -> None:
    line = fit(on_a_line(8, 16, 32))
    assert line.peak(1000) == pytest.approx(500 * MB + 10_000 * MB)
    assert not line.bent


def test_small_batches_that_the_update_rules_do_not_spoil_the_line() -> None:
    points = [Point(batch=1, peak=600 * MB), *on_a_line(16, 32)]
    assert fit(points).peak(64) == pytest.approx(1140 * MB)
    assert fit(points).peak(1) == 600 * MB


def test_points_that_are_not_on_a_line_are_said_to_be_a_guess() -> None:
    assert fit([Point(batch=8, peak=10), Point(batch=16, peak=20), Point(batch=32, peak=400)]).bent


def test_where_one_sample_fits_and_two_do_not_the_plan_is_a_cautious_guess() -> None:
    line = fit([Point(batch=1, peak=20 * GIB)])
    assert line.bent and line.largest(24 * GIB) == 1 and line.largest(80 * GIB) == 4 and line.largest(16 * GIB) == 0


def test_a_batch_is_shown_with_the_digits_that_are_known_and_still_fits() -> None:
    assert [rounded_down(batch) for batch in (0, 7, 64, 1234, 2_667_541)] == [0, 7, 64, 1200, 2_600_000]


def test_no_batch_is_larger_than_the_data_set_and_all_of_it_is_not_rounded() -> None:
    assert {fits.batch for fits in what_fits(facts(dataset_size=357), None)} == {357}
    small, *_ = what_fits(facts(dataset_size=357, lines={"as written": Line(fixed=0, per_sample=100 * MB)}), None)
    assert small.batch == 220


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    line = Line(fixed=500 * MB, per_sample=10 * MB)
    largest = line.largest(8 * GIB)
    assert line.peak(largest) <= 8 * GIB < line.peak(largest + 1)
    assert line.largest(505 * MB) == 0


def test_every_usual_card_is_told_and_a_larger_one_takes_no_smaller_batch() -> None:
    found = list(what_fits(facts(), None))
    assert [fits.card for fits in found] == [
        "this GPU (24 GB)", "8 GB", "12 GB", "24 GB", "40 GB", "80 GB", "96 GB", "141 GB"
    ]  # fmt: skip
    batches = [fits.batch for fits in found[1:]]
    assert batches == sorted(batches)


def test_the_wanted_batch_is_made_by_accumulation() -> None:
    for fits in what_fits(facts(), 1024):
        assert fits.accumulate is not None
        assert min(fits.batch, 1024) * fits.accumulate >= 1024
        assert min(fits.batch, 1024) * (fits.accumulate - 1) < 1024


def test_what_the_allocator_reserves_beyond_is_not_given_to_samples() -> None:
    tight, loose = (next(what_fits(facts(overhead=overhead), None)).batch for overhead in (1.0, 1.5))
    assert loose < 0.7 * tight


def test_levers_are_told_by_what_they_save() -> None:
    half = Line(fixed=500 * MB, per_sample=5 * MB)
    kept = {"blocks": 4, "in_blocks": 400 * MB, "largest_block": 100 * MB, "block_inputs": 20 * MB, "saved": 500 * MB}
    found = levers(facts(lines={"as written": facts().line, "bf16": half}, activations=kept, activations_batch=64))
    assert [lever.saves for lever in found] == sorted((lever.saves for lever in found), reverse=True)
    by_name = {lever.name: lever for lever in found}
    assert by_name["bf16 autocast"].saves == pytest.approx(320 * MB)
    assert by_name["activation checkpointing"].saves == pytest.approx(280 * MB)
    assert by_name["8-bit optimizer"].saves == pytest.approx(150 * MB)


def test_a_lever_that_saves_nothing_is_not_named() -> None:
    names = [lever.name for lever in levers(facts(own_batch=1, row={**facts().row, "optimizer": 0, "shape": [5]}))]
    assert names == []


def test_each_worker_needs_its_own_memory_and_its_waiting_batches() -> None:
    some = facts(worker=100 * MB, batch_bytes=1 * MB)
    assert host_need(some, 4, 2, 32) - host_need(some, 0, 2, 32) == 4 * (100 + 64) * MB
