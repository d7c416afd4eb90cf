"""Where a run went wrong and did not come back: from the findings of its journal, or from its metric and losses alone.

Positions are those of `History`. A state up to and with `begin` is from before the setback.
"""

from __future__ import annotations

import math
import statistics

from holdfast.checkpoints.choosing.falls import dips, of_losses, of_metric
from holdfast.checkpoints.choosing.setback import Setback
from holdfast.checkpoints.history import Change, History, Noted

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
    """Whether the last losses are not finite; a single one may be a batch whose update was left out."""
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
