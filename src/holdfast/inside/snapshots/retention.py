"""Which snapshots to keep: the newest, and older ones at growing distances, so that a fault seen late has a clean ancestor."""

from __future__ import annotations

from collections.abc import Sequence

_GROWTH = 4
_ROUND_INTERVALS = (50, 100, 200, 500, 1000, 2000, 5000)


def to_give_up(steps: Sequence[int], new: int, *, every: int, keep: int) -> int | None:
    """The step whose snapshot makes room for a new one; None while there is room.

    A snapshot moves one place back when the one before it has become 4 intervals old (16 for the next place, and so on);
    if not, it is the one that goes. With three places, ages are 0, 1 to 4, and 4 to 16 intervals.
    """
    newest_first = sorted(steps, reverse=True)
    if len(newest_first) < keep:
        return None
    for place, step in enumerate(newest_first[:-1]):
        age_of_next = (new - newest_first[place + 1]) / max(1, every)
        if round(age_of_next) < _GROWTH ** (place + 1):
            return step
    return newest_first[-1]


def fitting_interval(cost: float, step_seconds: float, *, share: float, at_least: int) -> int:
    """Steps between two snapshots, so that `cost` seconds each stay within `share` of the time: a round number."""
    if cost <= share * step_seconds * at_least:
        return at_least
    if step_seconds <= 0.0:
        return max(_ROUND_INTERVALS[-1], at_least)
    needed = max(at_least, cost / (share * step_seconds))
    return next((number for number in _ROUND_INTERVALS if number >= needed), max(_ROUND_INTERVALS[-1], at_least))
