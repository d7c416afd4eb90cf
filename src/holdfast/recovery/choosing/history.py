"""What is known of a run besides its checkpoints: its metrics, losses, changes and findings, as plain data.

`logs_beside.py` reads it from the logs of other tools; for a run folder of Holdfast the command line makes it from the tables and
the journal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

Unit = Literal["step", "epoch"]
Points = tuple[tuple[int, float], ...]
Better = Callable[[str], str | None]  # "higher", "lower", or None where the name of a metric does not say

HELD_OUT = ("val", "valid", "validation", "eval", "test", "dev", "metrics")
_FAVOURED = ("map5095", "map")  # of several metrics of held-out data these stand for the whole


class Change(NamedTuple):
    """A setting that was changed on purpose; `factor` is the learning rate that goes with it, if that is known."""

    step: int
    setting: str
    factor: float | None = None
    why: str = ""


class Noted(NamedTuple):
    """A finding of the journal or of a log; `onset` is where it began, `metric` the one that it is about, if it is about one."""

    step: int
    code: str
    severity: str
    onset: int
    metric: str = ""
    text: str = ""  # with its numbers, where the journal has none


class Undone(NamedTuple):
    """A roll-back: at step `at` the state became that of step `to`; what lay between was given up."""

    to: int
    at: int


@dataclass(frozen=True, slots=True)
class Series:
    """One metric over the run, oldest first; `lower_is_better` is None where nobody knows."""

    name: str
    points: Points
    lower_is_better: bool | None = None

    @property
    def better(self) -> str | None:
        """`higher` or `lower`; None where nobody knows."""
        return None if self.lower_is_better is None else "lower" if self.lower_is_better else "higher"

    def at(self, position: int) -> float | None:
        """The value at a step: that of the evaluation nearest to it, if it is as near as evaluations are to each other."""
        if not self.points:
            return None
        gaps = sorted(later[0] - earlier[0] for earlier, later in zip(self.points, self.points[1:], strict=False))
        reach = max(1, gaps[len(gaps) // 2] // 2) if gaps else 1
        nearest = min(self.points, key=lambda point: (abs(point[0] - position), -point[0]))
        return nearest[1] if abs(nearest[0] - position) <= reach else None

    def goodness(self, value: float) -> float:
        """The value so that higher is better; what is not finite is the worst of all."""
        if not math.isfinite(value):
            return -math.inf
        return -value if self.lower_is_better else value


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A run as far as it is known; everything may be missing. Positions are steps, or epochs where nothing counts steps."""

    unit: Unit = "step"
    metrics: tuple[Series, ...] = ()
    losses: Points = ()
    rates: Points = ()  # the learning rate from a step on
    changes: tuple[Change, ...] = ()
    findings: tuple[Noted, ...] = ()
    undone: tuple[Undone, ...] = ()
    judged: bool = False  # detectors have looked at the losses: what they did not find is not there
    epochs: tuple[tuple[int, int], ...] = ()  # an epoch and its last step, where both are counted
    last: int | None = None  # how far it came
    end: str = ""  # how it came to an end, in words
    monitored: str | None = None  # the metric by which whoever wrote the checkpoints calls one the best
    sources: tuple[str, ...] = field(default=())  # the files that this was read from

    def metric(self, name: str | None = None) -> Series | None:
        """The metric of that name; without one the monitored metric, or the one that says most about held-out data."""
        usable = [series for series in self.metrics if series.lower_is_better is not None and series.points]
        wanted = name or self.monitored
        if wanted:
            nearest = find_name(wanted, [series.name for series in self.metrics])
            chosen = next((series for series in self.metrics if series.name == nearest), None)
            if chosen is not None and (name or chosen in usable):
                return chosen
        return min(usable, key=_rank, default=None) if not name else None

    def rate_at(self, position: int) -> float | None:
        """The learning rate at a step."""
        before = [rate for step, rate in self.rates if step <= position]
        return before[-1] if before else None

    def later(self, steps: int) -> History:
        """The same run, counted from so many steps before its own first one: it resumed from a checkpoint of that step."""
        if not steps:
            return self
        return replace(
            self,
            metrics=tuple(replace(metric, points=_moved(metric.points, steps)) for metric in self.metrics),
            losses=_moved(self.losses, steps),
            rates=_moved(self.rates, steps),
            changes=tuple(change._replace(step=change.step + steps) for change in self.changes),
            findings=tuple(finding._replace(step=finding.step + steps, onset=finding.onset + steps) for finding in self.findings),
            undone=tuple(Undone(undone.to + steps, undone.at + steps) for undone in self.undone),
            epochs=(),  # they begin at nought again
            last=None if self.last is None else self.last + steps,
        )

    def with_metric(self, name: str | None, lower_is_better: bool | None) -> History:
        """The same with one metric as the monitored one, and its direction if that is told."""
        chosen = self.metric(name)
        if chosen is None:
            return self
        directed = chosen if lower_is_better is None else replace(chosen, lower_is_better=lower_is_better)
        return replace(
            self, metrics=tuple(directed if metric is chosen else metric for metric in self.metrics), monitored=chosen.name
        )


def is_held_out(name: str) -> bool:
    """Whether a metric's name says that it is of data that was not trained on."""
    return any(word in HELD_OUT for word in re.split(r"[^a-z]+", name.lower()))


def find_name(wanted: str, names: Iterable[str]) -> str | None:
    """The name that is meant: itself, or the only one that is the same without case and punctuation, or ends so."""
    names = list(names)
    if wanted in names:
        return wanted
    short = {name: _letters(name) for name in names}
    for fits in (str.__eq__, str.endswith):
        matches = [name for name in names if fits(short[name], _letters(wanted))]
        if len(matches) == 1:
            return matches[0]
    return None


def lineage(points: Iterable[tuple[int, float]]) -> Points:
    """Points in the order they were written; one that goes back (a restart from an earlier step) takes the place of the later."""
    kept: list[tuple[int, float]] = []
    for step, value in points:
        while kept and kept[-1][0] >= step:
            kept.pop()
        kept.append((step, value))
    return tuple(kept)


def _moved(points: Points, steps: int) -> Points:
    return tuple((at + steps, value) for at, value in points)


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _rank(series: Series) -> tuple[bool, int, bool]:
    """Held-out data first, then what stands for the whole, then what is better high: an accuracy says more than a loss."""
    name = _letters(series.name)
    favour = next((place for place, mark in enumerate(_FAVOURED) if mark in name), len(_FAVOURED))
    return not is_held_out(series.name), favour, bool(series.lower_is_better)
