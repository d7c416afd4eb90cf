"""Where a run went wrong and did not recover: from the findings of the detectors, and from the metric that counts.

Positions are those of `History`. A state up to and with `begin` is from before the setback.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from holdfast.detectors.evaluations import halved_at_the_end, lasting_fall, passing_collapses
from holdfast.recovery.choosing.history import Change, History, Noted, Series

NEVER = 1 << 62
OF_METRICS = ("metric-decline", "metric-collapse")
_BAD_NUMBERS = ("non-finite-loss", "non-finite-gradient", "non-finite-weights")
_OF_WEIGHTS = ("loss-divergence", "rank-divergence", "resume-mismatch", *_BAD_NUMBERS, *OF_METRICS)
_MARGIN = 4  # steps before the onset of a divergence that are not trusted either
_DEAD = 3  # losses in a row at the end that are not finite; a single one may be a batch whose update was skipped
_NEAR_STEPS, _NEAR_EVALUATIONS = 200, 2  # a change this long before the trouble may have led to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Setback:
    """One thing that went wrong; with an `end` it was overcome or undone, and states from there on are good again."""

    code: str
    begin: int
    seen: int
    text: str
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


def setbacks(history: History) -> list[Setback]:
    """Everything that went wrong and was not overcome, and what a roll-back undid; the earliest first."""
    every = [setback for noted in history.findings if (setback := _of_finding(noted, history)) is not None]
    metric = history.metric()
    own = of_metric(metric, history.unit) if metric is not None else None
    if own is not None:  # the values themselves say it better than the finding
        every = [setback for setback in every if not (setback.lasts and setback.code in OF_METRICS)] + [own]
    elif metric is not None:
        every += dips(metric, history.unit)
    if not any(setback.lasts and setback.code in _BAD_NUMBERS for setback in every):
        every += _dead(history)
    return sorted(every, key=lambda setback: (setback.begin, setback.seen))


def of_metric(series: Series, unit: str = "step") -> Setback | None:
    """A metric that collapsed, or got worse several times in a row, and is not back."""
    points = series.points
    fall = lasting_fall([value for _, value in points], series.better) if series.better is not None else None
    if fall is None:
        return None
    begin = points[fall.good][0]
    path = " -> ".join(short(value) for _, value in points[fall.good :][:5]) + (" …" if len(points) - fall.good > 5 else "")
    if fall.code == "metric-decline":
        text = f"{series.name} got worse after {unit} {begin:,} ({path}) and did not recover"
    elif fall.bad - fall.good > 1:
        text = f"{series.name} got worse after {unit} {begin:,} ({path}) and collapsed at {unit} {points[fall.bad][0]:,}"
    else:
        text = f"{series.name} collapsed at {unit} {points[fall.bad][0]:,} ({path})"
    return Setback(code=fall.code, begin=begin, seen=points[fall.good + 1][0], text=text)


def dips(series: Series, unit: str = "step") -> list[Setback]:
    """Stretches not to resume from: the metric was next to nothing and came back, or fell by half just at the end."""
    if series.better is None:
        return []
    points, values = series.points, [value for _, value in series.points]
    every = []
    for bad, back in passing_collapses(values, series.better):
        text = f"{series.name} collapsed at {unit} {points[bad][0]:,} and recovered by {unit} {points[back][0]:,}"
        every.append(
            Setback(code="metric-collapse", begin=points[bad - 1][0], seen=points[bad][0], end=points[back][0], text=text)
        )
    fell = halved_at_the_end(values, series.better)
    if fell is not None:
        seen, value = points[fell]
        text = f"{series.name} fell to {short(value)} at {unit} {seen:,}, just before the end: possibly noise"
        every.append(Setback(code="metric-decline", begin=points[fell - 1][0], seen=seen, end=NEVER, text=text))
    return every


def _dead(history: History) -> list[Setback]:
    """A training whose last losses are not finite."""
    newest = history.losses[-_DEAD:]
    if len(newest) < _DEAD or any(math.isfinite(value) for _, value in newest):
        return []
    finite = [at for at, value in history.losses if math.isfinite(value)]
    begin = finite[-1] if finite else history.losses[0][0] - 1
    seen = next(at for at, _ in history.losses if at > begin)
    text = f"the training loss is {newest[-1][1]} from {history.unit} {seen:,} on"
    return [Setback(code="non-finite-loss", begin=begin, seen=seen, text=text)]


def suspect(history: History, setback: Setback) -> Change | None:
    """The change that came shortly before a setback, if there is one."""
    before = [change for change in history.changes if change.step <= setback.seen]
    if not before:
        return None
    change = max(before, key=lambda earlier: earlier.step)
    if history.unit == "step" and setback.begin - change.step <= _NEAR_STEPS:
        return change
    metric = history.metric()
    good_since = [at for at, _ in metric.points if change.step < at <= setback.begin] if metric is not None else [0] * 9
    return change if len(good_since) <= _NEAR_EVALUATIONS else None


def _of_finding(noted: Noted, history: History) -> Setback | None:
    """A finding as a setback; None where it says nothing about the weights, or was overcome."""
    if noted.code not in _OF_WEIGHTS or (noted.code == "resume-mismatch" and noted.severity != "critical"):
        return None
    back = next((undone for undone in history.undone if undone.at >= noted.step), None)
    if back is None and _overcome(noted, history):
        return None
    begin = max(0, noted.onset - _MARGIN) if noted.code == "loss-divergence" and history.unit == "step" else noted.onset
    if noted.code in OF_METRICS:
        begin = _evaluation_before(noted, history)
    text = noted.text or f"{noted.code} at {history.unit} {noted.step:,}"
    if noted.onset != noted.step and not noted.text:
        text += f", since {history.unit} {noted.onset:,}"
    if back is not None:
        text += f"; rolled back to {history.unit} {back.to:,}"
        begin = min(begin, back.to)
    return Setback(code=noted.code, begin=begin, seen=noted.onset, end=back.at if back else None, text=text)


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
    series = next((metric for metric in history.metrics if metric.name == noted.metric), history.metric())
    before = [at for at, _ in series.points if at < noted.onset] if series is not None else []
    return before[-1] if before else noted.onset - 1
