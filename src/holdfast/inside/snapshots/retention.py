"""Which snapshots to keep: the newest, and older ones at growing distances, so that a fault seen late has a clean ancestor."""

from __future__ import annotations

from collections.abc import Sequence

_OLDEST = 32  # intervals
_ROUND_INTERVALS = (50, 100, 200, 500, 1000, 2000, 5000)


def to_give_up(steps: Sequence[int], new: int, *, every: int, keep: int) -> int | None:
    """The step whose snapshot makes room for a new one; None while there is room.

    The one that leaves the smallest gap goes, in proportion to its age, so that the older they are the further apart they
    lie: with five places ages are about 0, 1, 4, 10 and 20 intervals. One that is older than 32 goes first.
    """
    ages = sorted(((new - step) / max(1, every), step) for step in steps)
    if len(ages) < keep:
        return None
    if ages[-1][0] > _OLDEST or len(ages) == 1:
        return ages[-1][1]
    younger = (0.0, *(age for age, _ in ages))
    gaps = [(older + 1) / (younger[place] + 1) for place, (older, _) in enumerate(ages[1:])]
    return ages[gaps.index(min(gaps))][1]


def fitting_interval(cost: float, step_seconds: float, *, share: float, at_least: int) -> int:
    """Steps between two snapshots, so that `cost` seconds each stay within `share` of the time: a round number."""
    if cost <= share * step_seconds * at_least:
        return at_least
    if step_seconds <= 0.0:
        return max(_ROUND_INTERVALS[-1], at_least)
    needed = max(at_least, cost / (share * step_seconds))
    return next((number for number in _ROUND_INTERVALS if number >= needed), max(_ROUND_INTERVALS[-1], at_least))
