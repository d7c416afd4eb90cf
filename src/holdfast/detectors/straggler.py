"""`straggler`: one rank is slower than the others, which wait for it in every step."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from holdfast.detectors.finding import Finding

_WINDOW = 24  # steps that are compared
_SAME = 0.9  # of them, in which the same rank must be the last to come
_SHARE, _SECONDS = 0.25, 0.01  # of the step that the others wait for it, and how long that is


@dataclass(frozen=True, slots=True)
class Held:
    """Of one rank in one step, in seconds: how long it was held by what the ranks do together, and what it took beside that."""

    held: float
    step: float
    data: float


class _Late(NamedTuple):
    step: int
    rank: int  # the last one
    wait: float  # of the others, for it
    step_seconds: float
    more_data: float  # seconds that it waited longer for its data than the others


class Straggler:
    """Takes in the times of each rank, step by step; reported once.

    Who comes last to a collective is held by it the shortest. Chance makes now one and now another rank the last: it must be
    the same in almost all steps, and the others must lose much by it. Where a GPU does the waiting (NCCL), the host is not
    held, and nothing is said.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._by_step: dict[int, dict[int, Held]] = {}
        self._last: deque[_Late] = deque(maxlen=_WINDOW)
        self._reported = False

    def add(self, rank: int, step: int, times: Held) -> Finding | None:
        """The times of one rank in one step."""
        if self._reported:
            return None
        by_rank = self._by_step.setdefault(step, {})
        by_rank[rank] = times
        if len(by_rank) < self._ranks:
            return None
        for old in [one for one in self._by_step if one <= step]:
            del self._by_step[old]
        self._last.append(_late(step, by_rank))
        return self._judged(step)

    def _judged(self, step: int) -> Finding | None:
        rank, times = Counter(late.rank for late in self._last).most_common(1)[0]
        if len(self._last) < _WINDOW or times < _SAME * _WINDOW:
            return None
        wait, usual = median(late.wait for late in self._last), median(late.step_seconds for late in self._last)
        if wait < max(_SECONDS, _SHARE * usual):
            return None
        self._reported = True
        evidence = {
            "onset": next(late.step for late in self._last if late.rank == rank),
            "rank": rank,
            "wait_seconds": wait,
            "step_seconds": usual,
            "fraction": wait / usual,
            "data_bound": median(late.more_data for late in self._last) > 0.5 * wait,
        }
        return Finding("straggler", step=step, evidence=evidence)


def _late(step: int, by_rank: Mapping[int, Held]) -> _Late:
    """Who came last in a step, and what the others lost by it."""
    last = min(by_rank, key=lambda rank: by_rank[rank].held)
    others = [times for rank, times in by_rank.items() if rank != last]
    return _Late(
        step,
        last,
        wait=median(times.held for times in others) - by_rank[last].held,
        step_seconds=median(times.step for times in by_rank.values()),
        more_data=by_rank[last].data - median(times.data for times in others),
    )
