"""How much Holdfast may cost, what it has cost, and how often the expensive measurements are taken.

The loss and the finiteness of the gradients are read at every step. Everything else is a *sampled metric*: per-parameter norms,
weight norms, module times, input statistics. Each is measured every so many steps, so that its measured cost, spread over the
steps between, stays within its share of the remaining budget.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

_MEMORY = 0.9  # weight of the past in the running means of a step's costs
_AT_MOST_EVERY = 10  # steps between two samples of a sampled metric, at least, unless everything is sampled
_NEVER_LESS = 0.1  # of the budget stays for the luxuries, even where what is always done takes all of it
_AT_LEAST_EVERY = 2000  # however tight the budget, a sampled metric is done once in so many steps
MEETING = 100  # steps; see Budget.meeting
_CLOSER, _CLOSER_EVERY = ("parameters", "weights"), 64  # out of turn: no more than once in so many steps, on the whole
_HIGH, _LOW = 8.0, 20.0  # times its usual scatter that a loss lies high, and times that a rate fell
_OPENING_STEPS = 500  # a short run sees samples early; a long one is sampled by time as well


@dataclass(slots=True)
class SampledMetric:
    """One thing that is done on some steps only."""

    name: str
    share: float
    first_step: int
    with_update: bool = True  # whether its moment is an update; others come when they come
    cost: float | None = None
    samples: int = 0
    next_step: int = 0
    last_time: float = 0.0


@dataclass(slots=True)
class Budget:
    """The ledger of one training; `fraction` is the part of the step that Holdfast may take (0.01 is one per cent)."""

    fraction: float = 0.01
    always_done: frozenset[str] = frozenset()  # luxuries that are done at every step, whatever they cost
    step_seconds: float = 0.0
    always: float = 0.0
    next_step: int = 0  # before this step nothing is due
    closer: int = 0  # how often it was looked at closer, out of turn
    usual_loss: float = 0.0
    scatter: float = 0.0  # of the loss
    rate: float = 0.0  # the learning rate of the step before
    meeting: int = 0  # with several ranks: every so many steps all of them take the norms of their weights, to be compared
    started: float = field(default_factory=time.monotonic)
    luxuries: dict[str, SampledMetric] = field(
        default_factory=lambda: {
            "parameters": SampledMetric("parameters", share=0.35, first_step=1),
            "weights": SampledMetric("weights", share=0.25, first_step=2),
            "modules": SampledMetric("modules", share=0.30, first_step=3),
            "inputs": SampledMetric("inputs", share=0.05, first_step=1, with_update=False),
            "held-out": SampledMetric("held-out", share=0.05, first_step=1, with_update=False),
        }
    )

    def charge_step(self, step_seconds: float, always_seconds: float) -> None:
        """Book one step: how long it took, and what the things done at every step cost in it."""
        if self.step_seconds == 0.0:
            self.step_seconds, self.always = step_seconds, always_seconds
        self.step_seconds += (1 - _MEMORY) * (step_seconds - self.step_seconds)
        self.always += (1 - _MEMORY) * (always_seconds - self.always)

    def charge(self, name: str, seconds: float) -> None:
        """Book what one sample of a sampled metric cost."""
        metric = self.luxuries[name]
        metric.samples += 1
        if metric.cost is not None:
            metric.cost = (metric.cost + seconds) / 2
        elif metric.samples > 1:  # the first one also warms up: compiles, writes names down
            metric.cost = seconds

    def due(self, name: str, step: int) -> bool:
        """Whether this step is one on which the sampled metric is done; says yes at most once a step."""
        metric = self.luxuries[name]
        if name in self.always_done:
            return step >= metric.first_step
        meets = self.meeting and name == "parameters" and step % self.meeting == 0 and step > 0
        if step < metric.next_step and not meets:
            return False
        now = time.monotonic()
        early = step < metric.first_step
        metric.next_step = metric.first_step if early else step + self.interval(name)
        soonest = min(other.next_step for other in self.luxuries.values() if other.with_update)
        if self.meeting:
            soonest = min(soonest, step - step % self.meeting + self.meeting)
        self.next_step = 0 if self.always_done else soonest
        if early or (not meets and step > _OPENING_STEPS and now - metric.last_time < self._pause(now)):
            return False
        metric.last_time = now
        return True

    def note(self, step: int, loss: float, rate: float) -> None:
        """Look closer at the next step if this loss is far above its usual scatter, or the learning rate fell far."""
        above = loss - self.usual_loss
        if above > _HIGH * self.scatter > 0.0 or _LOW * rate < self.rate:
            self.look_closer(step + 1)
        self.usual_loss += 0.1 * above if self.scatter else loss
        self.scatter += 0.1 * (abs(above) - self.scatter) if self.scatter else abs(loss)
        self.rate = rate

    def look_closer(self, step: int) -> None:
        """Something has happened: sample gradients and weights from this step on out of turn, a few times in a thousand steps."""
        if self.closer * _CLOSER_EVERY > step or min(self.luxuries[name].samples for name in _CLOSER) == 0:
            return
        self.closer += 1
        for name in _CLOSER:
            self.luxuries[name].next_step, self.luxuries[name].last_time = step, 0.0
        self.next_step = 0

    def interval(self, name: str) -> int:
        """Steps between two samples of a sampled metric, so that it fits into its share."""
        metric = self.luxuries[name]
        if metric.cost is None or self.step_seconds <= 0.0:
            return _AT_MOST_EVERY
        whole = self.fraction * self.step_seconds
        steps = metric.cost / (metric.share * max(whole - self.always, _NEVER_LESS * whole))
        return int(min(max(steps, _AT_MOST_EVERY), _AT_LEAST_EVERY)) + 1

    def _pause(self, now: float) -> float:
        """Seconds between samples: one at first, more as the run gets long, so that disk use stays bounded."""
        return min(60.0, max(1.0, (now - self.started) / 600.0))
