"""One rank that is set up differently is named; ranks that follow a rule are not."""

from __future__ import annotations

from typing import Any

from holdfast.detectors.ranks_differ import ranks_differ


def named(**of_rank: list[Any]) -> list[tuple[str, int, str]]:
    ranks = range(len(next(iter(of_rank.values()))))
    setups = {rank: {name: values[rank] for name, values in of_rank.items() if values[rank] is not ...} for rank in ranks}
    return [(one.evidence["what"], one.evidence["rank"], one.severity) for one in ranks_differ(setups, step=3)]


def test_a_rank_with_another_torch_or_data_order_is_a_warning() -> None:
    assert named(torch=["2.13", "2.13", "2.4", "2.13"]) == [("torch version", 2, "warning")]
    sampler = ["DistributedSampler", 0, True, 4]
    assert named(sampler=[sampler, sampler, sampler, ["DistributedSampler", 9, True, 4]]) == [("order of the data", 3, "warning")]
    assert named(torch=["2.13", "2.4"]) == [("torch version", 1, "warning")]


def test_a_rank_that_has_not_drawn_data_yet_does_not_differ() -> None:
    sampler = ["DistributedSampler", 0, True, 4]
    assert named(sampler=[..., ..., ..., sampler]) == named(sampler=[..., sampler, sampler, sampler]) == []
    assert named(sampler=[sampler, sampler, None, sampler]) == [("order of the data", 2, "warning")]


def test_a_seed_is_named_only_where_the_others_follow_a_rule() -> None:
    assert named(seed=[0, 0, 5, 0]) == [("random seed", 2, "info")]
    assert named(seed=[10, 11, 99, 13]) == [("random seed", 2, "info")]
    assert named(seed=[10, 11, 12, 13]) == named(seed=[7, 7, 7, 7]) == named(seed=[4, 9, 77, 5]) == named(seed=[1, 2]) == []


def test_a_clock_that_is_minutes_off_is_named() -> None:
    assert named(clock=[0.1, -0.2, 300.0, 0.0]) == [("clock", 2, "info")]
    assert named(clock=[0.1, -20.0, 30.0, 0.0]) == []
