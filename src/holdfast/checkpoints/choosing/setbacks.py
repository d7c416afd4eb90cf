"""Where a run went wrong and did not come back: from the findings of its journal, or from its metric and losses alone.

Positions are those of `History`. A state up to and with `begin` is from before the setback.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.checkpoints.history import Change, History, Noted, Points, Series

NEVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Setback:
    """One thing that went wrong; with an `end` it was overcome or undone, and states from there on are good again."""

    code: str
    begin: int
    seen: int
    words: str
    end: int | None = None

    @property
    def lasts(self) -> bool:
        """Whether the run never came back from it."""
        return self.end is None

    @property
    def until(self) -> int | None:
        """Where it was over, if that is known."""
        return self.end if self.end is not None and self.end < NEVER else None

    def holds(self, position: int) -> bool:
        """Whether a state was saved within it."""
        return position > self.begin and (self.end is None or position < self.end)


def short(value: float) -> str:
    """A number with about four digits."""
    return f"{value:.4g}"


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


OF_METRICS = ("metric-decline", "metric-collapse")
_OF_WEIGHTS = (
    *("loss-divergence", "non-finite-weights", "non-finite-loss", "non-finite-gradient", "rank-divergence", "resume-mismatch"),
    *OF_METRICS,
)
_BAD_NUMBERS = ("non-finite-loss", "non-finite-gradient", "non-finite-weights")
_MARGIN = 4  # steps before the onset of a divergence that are not trusted either
_IN_A_ROW = 3  # losses
_NEAR_STEPS, _NEAR_EVALUATIONS = 200, 2  # a change this long before the trouble may have led to it


def setbacks(history: History) -> list[Setback]:
    """Everything that went wrong and was not overcome, and what a roll-back undid; the earliest first."""
    found = [one for noted in history.findings if (one := _of_finding(noted, history)) is not None]
    codes = {one.code for one in found if one.lasts}
    metric = history.metric()
    own = [of_metric(metric, history.unit) if metric is not None else None, of_losses(history.losses, history.unit)]
    if codes & {"loss-divergence", *_BAD_NUMBERS} or (history.judged and not _is_dead(history)):
        own[1] = None  # the journal's judgement stands
    if own[0] is not None:
        found = [one for one in found if not (one.lasts and one.code in OF_METRICS)]  # told better by the values themselves
    passed = dips(metric, history.unit) if metric is not None and own[0] is None else []
    return sorted((one for one in (*found, *own, *passed) if one is not None), key=lambda one: (one.begin, one.seen))


def _is_dead(history: History) -> bool:
    """Whether the last losses are not finite; a single one may be a batch whose update was skipped."""
    newest = [value for _, value in history.losses[-_IN_A_ROW:]]
    return len(newest) == _IN_A_ROW and not any(map(math.isfinite, newest))


def suspect(history: History, setback: Setback) -> Change | None:
    """The change that came shortly before a setback, if there is one."""
    before = [change for change in history.changes if change.step <= setback.seen]
    if not before:
        return None
    change = max(before, key=lambda one: one.step)
    if history.unit == "step" and setback.begin - change.step <= _NEAR_STEPS:
        return change
    metric = history.metric()
    good_since = [at for at, _ in metric.points if change.step < at <= setback.begin] if metric is not None else [0] * 9
    return change if len(good_since) <= _NEAR_EVALUATIONS else None


def _of_finding(noted: Noted, history: History) -> Setback | None:
    """A finding of the journal as a setback; None where it says nothing about the weights, or was overcome."""
    if noted.code not in _OF_WEIGHTS or (noted.code == "resume-mismatch" and noted.severity != "critical"):
        return None
    back = next((undone for undone in history.undone if undone.at >= noted.step), None)
    if back is None and _overcome(noted, history):
        return None
    begin = max(0, noted.onset - _MARGIN) if noted.code == "loss-divergence" else noted.onset
    if noted.code in OF_METRICS:
        begin = _evaluation_before(noted, history)
    words = f"{noted.code} at {history.unit} {noted.step:,}"
    if noted.onset != noted.step:
        words += f", since {history.unit} {noted.onset:,}"
    if back is not None:
        words += f"; rolled back to {history.unit} {back.to:,}"
        begin = min(begin, back.to)
    return Setback(code=noted.code, begin=begin, seen=noted.onset, end=back.at if back else None, words=words)


def _overcome(noted: Noted, history: History) -> bool:
    """Whether what came after the finding is as good as what was before it."""
    if noted.code in OF_METRICS:
        metric = history.metric()
        if metric is None or of_metric(metric) is not None:
            return False
        return noted.metric not in ("", metric.name) or metric.points[-1][0] > noted.step
    later = [value for at, value in history.losses if at > noted.step]
    if noted.code in _BAD_NUMBERS:
        return any(math.isfinite(value) for value in later[-5:])
    before = [value for at, value in history.losses if at < noted.onset and math.isfinite(value)][-20:]
    after = [value for value in later[-20:] if math.isfinite(value)]
    if len(before) < 5 or len(after) < 5:
        return False
    usual = statistics.median(before)
    return statistics.median(after) <= usual + 0.2 * abs(usual)


def _evaluation_before(noted: Noted, history: History) -> int:
    """The last evaluation before a metric began to get worse; what was saved after it may be worse already."""
    series = next((one for one in history.metrics if one.name == noted.metric), history.metric())
    before = [at for at, _ in series.points if at < noted.onset] if series is not None else []
    return before[-1] if before else noted.onset - 1
