"""The one judgement of a series of evaluations, live and afterwards: which values collapsed, which falls are not noise."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.signals.curves import Floats

IN_A_ROW = 3  # evaluations, each worse than the one before, that make a decline
_AS_GOOD = 0.02  # of the best value: within this a metric is as good as it was
_REGAINED = 0.8  # of what a decline had cost: then it has come back
_DOWN, _NOISE = 0.25, 4.0  # of the best value, and times the usual move: a metric that stays so far below has fallen
_HALVED = 0.5  # of the best value: a checkpoint from a single evaluation so bad is not resumed from
NOTHING_YET = 0.05  # of a metric that is better when higher: a detector whose mAP is 2 % finds its objects by chance
_AVERAGE_PRECISION = re.compile(r"(?:^|[^a-z])m?ap(?![a-z])", re.IGNORECASE)
_LEARNED = 0.1  # of the way from the first value to the best: next to a loss of nearly nought everything is many times it


class Fall(NamedTuple):
    """A fall that lasts: indexes of the last good evaluation and of the first bad one."""

    code: str  # metric-collapse or metric-decline
    good: int
    bad: int


def collapsed(
    values: Sequence[float], better: str, *, share: float = 0.1, lost: float = 0.9, active_after: int = IN_A_ROW
) -> list[bool]:
    """Which values are worth nothing against the best before them: `share` of it, or `lost` of the way back to the first."""
    bad: list[bool] = []
    past: list[float] = []
    best = first = 0.0
    for index, value in enumerate(values):
        comparable = index >= active_after and len(past) >= 2
        if not math.isfinite(value):
            bad.append(index >= active_after)
            continue
        if better == "higher":
            gone = comparable and best > NOTHING_YET and value <= share * best and statistics.median(past[-3:]) > 3 * share * best
        else:
            learned = comparable and first > 1.5 * best > 0 and statistics.median(past[-3:]) < best + 0.5 * (first - best)
            gone = learned and value >= best + lost * (first - best)
        bad.append(gone)
        if not gone:
            first = first if past else value
            best = value if not past else max(best, value) if better == "higher" else min(best, value)
            past.append(value)
    return bad


def is_nothing_yet(values: Sequence[float], better: str) -> bool:
    """Whether a metric has never been good enough to fall."""
    return better == "higher" and max(values) <= NOTHING_YET


def has_found_nothing(high: Mapping[str, Sequence[float] | Floats]) -> bool:
    """Whether the metrics that are better when higher were never good enough to fall, by name; False where there are none.

    A detector from scratch has hardly any loss of boxes until it finds its first objects, and a recall of boxes that are right
    by chance: until its average precision is worth something, nothing is judged. What is negative is no such metric (a
    log-likelihood).
    """
    metrics = [[value for value in high[name] if math.isfinite(value)] for name in main_metrics(high)]
    return bool(metrics) and all(0.0 <= value <= NOTHING_YET for values in metrics for value in values)


def main_metrics(names: Iterable[str]) -> list[str]:
    """The metrics that tell whether a model finds anything: average precision where it is measured, else all."""
    every = list(names)
    return [name for name in every if _AVERAGE_PRECISION.search(name)] or every


def clear_fall(past: Sequence[float], *, noise: float = 3.0) -> float:
    """How far below the last of some values the next must fall to be more than their usual moves."""
    moves = _moves(past)
    if len(moves) < 3:
        return 0.1 * abs(past[-1])
    return max(noise * statistics.median(moves), 0.02 * abs(past[-1]))


def lasting_fall(values: Sequence[float], better: str) -> Fall | None:
    """The collapse or decline that a whole series ends in; None where it is well or came back."""
    if len(values) < IN_A_ROW or is_nothing_yet(values, better):
        return None
    good, bad = _higher_is_better(values, better), collapsed(values, better, active_after=2)
    if bad[-1]:
        start = max(index for index, gone in enumerate(bad) if not gone) + 1
        return Fall("metric-collapse", _as_good_as_the_best(good, start), start)
    fell = _declined(good)
    if fell is None:
        fell = _fallen_since(good, _DOWN)
        if fell is None or len(good) - fell < IN_A_ROW:  # once or twice is no proof
            return None
    start = _as_good_as_the_best(good, fell)
    return Fall("metric-decline", start, start + 1)


def passing_collapses(values: Sequence[float], better: str) -> list[tuple[int, int]]:
    """Collapses that passed: the index of the first bad evaluation, and of the next good one."""
    bad = collapsed(values, better, active_after=2)
    starts = [index for index in range(1, len(bad)) if bad[index] and not bad[index - 1]]
    return [(start, bad.index(False, start)) for start in starts if not all(bad[start:])]


def halved_at_the_end(values: Sequence[float], better: str) -> int | None:
    """Since when the values have been half of the best or worse; chance, perhaps, where it is one evaluation alone."""
    if len(values) < IN_A_ROW or collapsed(values, better, active_after=2)[-1]:
        return None
    return _fallen_since(_higher_is_better(values, better), _HALVED)


def _higher_is_better(values: Sequence[float], better: str) -> list[float]:
    sign = 1.0 if better == "higher" else -1.0
    return [sign * value if math.isfinite(value) else -math.inf for value in values]


def _declined(good: Sequence[float]) -> int | None:
    """Where a decline of several values in a row began that was more than noise and was not made up for."""
    start = 0
    for index in range(1, len(good) + 1):
        if index < len(good) and good[index] < good[index - 1]:
            continue
        if index - 1 - start >= IN_A_ROW and _is_decline(good, start, index - 1):
            return start + 1
        start = index
    return None


def _is_decline(good: Sequence[float], start: int, last: int) -> bool:
    fallen, regained = good[start] - good[last], max(good[last + 1 :], default=-math.inf)
    needed = max(clear_fall(good[: start + 1]), _of_what_was_learned(good, start))
    return fallen >= needed and regained < good[last] + _REGAINED * fallen


def _fallen_since(good: Sequence[float], share: float) -> int | None:
    """Since when all values have been so far below the best, and more than noise; None if the last one is not."""
    top = max(range(len(good)), key=lambda index: good[index])
    if not math.isfinite(good[top]):
        return None
    moves = _moves(good[: top + 1])
    noise = _NOISE * statistics.median(moves) if len(moves) >= 3 else 0.0
    bar = good[top] - max(share * abs(good[top]), noise, _of_what_was_learned(good, top))
    since = max(index for index, value in enumerate(good) if value >= bar) + 1
    return since if since < len(good) else None


def _of_what_was_learned(good: Sequence[float], best: int) -> float:
    way = good[best] - good[0]
    return _LEARNED * way if math.isfinite(way) else 0.0


def _as_good_as_the_best(good: Sequence[float], fell: int) -> int:
    """The last value before `fell` that was as good as the best before it."""
    best = max(good[:fell])
    return max(index for index in range(fell) if good[index] >= best - _AS_GOOD * abs(best))


def _moves(values: Sequence[float]) -> list[float]:
    moves = [abs(after - before) for before, after in itertools.pairwise(values)]
    return [move for move in moves if math.isfinite(move)]
