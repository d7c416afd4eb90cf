"""Where a metric or a loss fell and did not come back, told from its values alone.

Tried on logs of strangers, labelled by hand: of 50 healthy ones none is said to have fallen, of 8 broken ones 7 are.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from holdfast.checkpoints.choosing.setback import NEVER, Setback, short
from holdfast.checkpoints.history import Points, Series

_IN_A_ROW = 3
_AS_GOOD = 0.02  # of the best value: within this a metric is as good as it was
_REGAINED = 0.8  # of what a decline had cost: then it has come back
_DOWN, _NOISE = 0.25, 4.0  # of the best value, and times the usual move: a metric that stays so far below has fallen
_HALVED = 0.5  # of the best value: fallen so far, even a single evaluation is nothing to go on from
_COLLAPSED, _STOOD = 0.1, 0.3  # shares of the best value: collapsed to, from above
_LOST = 0.9  # of the way back to the beginning, for what is better low
_RUN_AWAY, _FEW_LOSSES = 4.0, 5  # times the first loss; fewer losses than that say nothing


def of_metric(series: Series, unit: str = "step") -> Setback | None:
    """A metric that collapsed, or got worse several times in a row, and is not back."""
    points = series.points
    if series.lower_is_better is None or len(points) < _IN_A_ROW:
        return None
    good = [series.goodness(value) for _, value in points]
    bad = _collapsed(series, points)
    fell = bad.index(True, _last_good(bad)) if bad[-1] else _declined(good)
    if fell is None and (fell := _fallen_since(good, _DOWN)) is not None and len(points) - fell < _IN_A_ROW:
        return None  # once or twice is no proof
    if fell is None:
        return None
    start = _as_good_as_the_best(good, fell)
    path = " -> ".join(short(value) for _, value in points[start:][:5]) + (" …" if len(points) - start > 5 else "")
    code, seen = ("metric-collapse", points[fell][0]) if bad[-1] else ("metric-decline", points[start + 1][0])
    if not bad[-1]:
        words = f"{series.name} got worse after {unit} {points[start][0]:,} ({path}) and did not come back"
    elif fell - start > 1:
        words = f"{series.name} got worse after {unit} {points[start][0]:,} ({path}) and collapsed at {unit} {seen:,}"
    else:
        words = f"{series.name} collapsed at {unit} {seen:,} ({path})"
    return Setback(code=code, begin=points[start][0], seen=points[start + 1][0], words=words)


def dips(series: Series, unit: str = "step") -> list[Setback]:
    """Stretches with nothing to go on from: a metric was next to nothing and came back, or fell by half just at the end."""
    points = series.points
    if series.lower_is_better is None or len(points) < _IN_A_ROW:
        return []
    bad, found = _collapsed(series, points), []
    good = [series.goodness(value) for _, value in points]
    fell = _fallen_since(good, _HALVED)
    if fell is not None and not bad[-1]:
        begin, seen, value = points[fell - 1][0], points[fell][0], points[fell][1]
        words = f"{series.name} fell to {short(value)} at {unit} {seen:,}, just before the end: that may be chance"
        found.append(Setback(code="metric-decline", begin=begin, seen=seen, end=NEVER, words=words))
    for index in range(1, len(points)):
        if bad[index] and not bad[index - 1]:
            back = next((at for (at, _), gone in zip(points[index:], bad[index:], strict=True) if not gone), None)
            if back is not None:
                words = f"{series.name} collapsed at {unit} {points[index][0]:,} and came back by {unit} {back:,}"
                begin, seen = points[index - 1][0], points[index][0]
                found.append(Setback(code="metric-collapse", begin=begin, seen=seen, end=back, words=words))
    return found


def of_losses(losses: Points, unit: str = "step") -> Setback | None:
    """A training loss that is not finite at the end, or has lost nearly all that was learned."""
    if not losses:
        return None
    if not math.isfinite(losses[-1][1]):
        finite = [at for at, value in losses if math.isfinite(value)]
        begin = finite[-1] if finite else losses[0][0] - 1
        seen = next(at for at, _ in losses if at > begin)
        words = f"the training loss is {losses[-1][1]} from {unit} {seen:,} on"
        return Setback(code="non-finite-loss", begin=begin, seen=seen, words=words)
    known = [point for point in losses if math.isfinite(point[1])]
    if len(known) < _FEW_LOSSES:
        return None
    wide = 5 if len(known) >= 3 * _FEW_LOSSES else 3
    levels = [
        statistics.median(value for _, value in known[max(0, i - wide // 2) : i + wide // 2 + 1]) for i in range(len(known))
    ]
    first, low, now = levels[0], min(levels), statistics.median(value for _, value in known[-wide:])
    forgotten = wide == 5 and first > low + 0.1 * abs(low) and now >= low + _LOST * (first - low)
    if not forgotten and not now > _RUN_AWAY * known[0][1] > 0:
        return None
    bar = low + 0.1 * (first - low) if forgotten else known[0][1]
    begin = max((i for i, level in enumerate(levels) if level <= bar), default=0)
    at, seen = known[begin][0], known[min(begin + 1, len(known) - 1)][0]
    words = f"the training loss rose from {short(min(known[begin][1], levels[begin]))} to {short(now)} after {unit} {at:,}"
    return Setback(code="loss-divergence", begin=at, seen=seen, words=words)


def _collapsed(series: Series, points: Sequence[tuple[int, float]]) -> list[bool]:
    """Which values are next to nothing against the best before them."""
    bad = [False] * len(points)
    for index in range(2, len(points)):
        value, past = points[index][1], [v for (_, v), b in zip(points[:index], bad, strict=False) if not b and math.isfinite(v)]
        if not math.isfinite(value):
            bad[index] = True
        elif len(past) < 2:
            continue
        elif series.lower_is_better:
            best, first = min(past), past[0]
            stood = statistics.median(past[-3:]) < best + 0.5 * (first - best)
            bad[index] = stood and first > 1.5 * best > 0 and value >= best + _LOST * (first - best)
        else:
            best = max(past)
            bad[index] = best > 0 and value <= _COLLAPSED * best and statistics.median(past[-3:]) > _STOOD * best
    return bad


def _last_good(bad: Sequence[bool]) -> int:
    return max(index for index, one in enumerate(bad) if not one)


def _declined(good: Sequence[float]) -> int | None:
    """Where a decline of several values in a row began to show that was more than noise and was not made up for."""
    start = 0
    for index in range(1, len(good) + 1):
        if index < len(good) and good[index] < good[index - 1]:
            continue
        last = index - 1
        if last - start >= _IN_A_ROW and _is_fall(good, start, last):
            return start + 1
        start = index
    return None


def _fallen_since(good: Sequence[float], share: float) -> int | None:
    """Since when all values have been so far below the best, and more than noise; None if the last one is not."""
    top = max(range(len(good)), key=lambda index: good[index], default=0)
    if len(good) < _IN_A_ROW or not math.isfinite(good[top]):
        return None
    moves = [abs(b - a) for a, b in itertools.pairwise(good[: top + 1]) if math.isfinite(b - a)]
    noise = _NOISE * statistics.median(moves) if len(moves) >= 3 else 0.0
    bar = good[top] - max(share * abs(good[top]), noise, _of_what_was_learned(good, top))
    low = [value < bar for value in good]
    if not low[-1]:
        return None
    return max(index for index, one in enumerate(low) if not one) + 1


def _is_fall(good: Sequence[float], start: int, last: int) -> bool:
    fallen = good[start] - good[last]
    moves = [abs(b - a) for a, b in itertools.pairwise(good[: start + 1])]
    least = max(3 * statistics.median(moves), 0.02 * abs(good[start])) if len(moves) >= 3 else 0.1 * abs(good[start])
    least = max(least, _of_what_was_learned(good, start))
    back = max(good[last + 1 :], default=-math.inf)
    return fallen >= least and back < good[last] + _REGAINED * fallen


def _of_what_was_learned(good: Sequence[float], best: int) -> float:
    """A tenth of the way from the first value to the best: next to a loss of nearly nought everything else is many times it."""
    way = good[best] - good[0]
    return 0.1 * way if math.isfinite(way) else 0.0


def _as_good_as_the_best(good: Sequence[float], fell: int) -> int:
    """The last value before `fell` that was as good as the best before it."""
    best = max(good[:fell])
    return max(index for index in range(fell) if good[index] >= best - _AS_GOOD * abs(best))
