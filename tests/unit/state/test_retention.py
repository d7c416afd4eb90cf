"""Which snapshots are given up, and how often one is taken."""

from __future__ import annotations

from every_case import every_case

from holdfast.checkpoints.retain import step_to_drop
from holdfast.state.snapshots import affordable_interval


@every_case(("places", "newest_but_one", "oldest"), [(3, 16, 3), (4, 5, 8), (5, 3, 10)])
def test_the_newest_is_kept_and_older_ones_at_growing_distances(places: int, newest_but_one: float, oldest: float) -> None:
    kept: list[int] = []
    for step in [1, 10, *range(50, 20_000, 50)]:
        goes = step_to_drop(kept, step, every=50) if len(kept) == places else None
        kept = sorted({*kept, step} - {goes})
        assert len(kept) <= places and kept[-1] == step
        if step > 1000:
            ages = [(step - other) / 50 for other in kept]
            assert ages[-2] <= newest_but_one, "a fault that is seen at once loses few steps"
            assert oldest <= ages[0] <= 33, "a fault that is seen late has a clean ancestor"


def test_frequent_snapshots_reach_back_as_far_as_rare_ones() -> None:
    kept: list[int] = []
    for step in [1, *range(10, 20_000, 10)]:
        goes = step_to_drop(kept, step, every=10) if len(kept) == 5 else None
        kept = sorted({*kept, step} - {goes})
        if step > 2000:
            assert step - kept[-2] <= 100 and 500 <= step - kept[0] <= 1650


def test_with_one_place_the_newest_takes_it() -> None:
    assert step_to_drop([50], 100, every=50) == 50


def test_the_interval_fits_the_budget_in_round_numbers() -> None:
    assert affordable_interval(0.0001, 0.1, budget=0.005, at_least=50) == 50
    assert affordable_interval(0.005, 0.1, budget=0.005, at_least=10) == 10
    assert affordable_interval(0.006, 0.1, budget=0.005, at_least=10) == 20
    assert affordable_interval(0.1, 0.1, budget=0.005, at_least=50) == 200
    assert affordable_interval(0.2, 0.1, budget=0.005, at_least=50) == 500
    assert affordable_interval(60.0, 0.1, budget=0.005, at_least=50) == 5000
    assert affordable_interval(0.1, 0.0, budget=0.005, at_least=50) == 5000
