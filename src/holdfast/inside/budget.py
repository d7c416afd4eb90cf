"""How much Holdfast may cost, what it has cost, and how often the expensive measurements are taken.

Loss and gradient norm are read at every step. Everything else is a *sampled metric*: per-parameter norms, weight norms, module
times, input statistics. Each is taken every n steps, so that its measured cost, spread over those steps, stays within its
fraction of the remaining budget.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

_MOMENTUM = 0.9  # of the running means of step time and cost
_MIN_INTERVAL, _MAX_INTERVAL = 10, 2000  # steps between two samples, however large or tight the budget
MEETING = 100  # steps; see Budget.meeting
_CLOSER, _CLOSER_EVERY = ("parameters", "weights"), 64  # extra samples: at most one in so many steps, on average
_AGAIN, _AGAIN_AFTER, _REPEATED_AT_MOST = 4, 7, 8  # samples, steps between them, how often in a run
_SPIKE, _LR_DROP = 6.0, 20.0  # the rise of the loss, in usual changes from step to step; the factor by which the LR fell
_WEIGHTS = 0.1  # fraction by which the norm of all weights may change from sample to sample
_OPENING_STEPS = 500  # later samples are also limited in time; a short run gets its samples early


@dataclass(slots=True)
class SampledMetric:
    """A measurement that is taken on some steps only."""

    share: float
    first_step: int
    with_update: bool = True  # whether it is taken at an update, rather than at a batch
    adds_rows: bool = True  # in a long run, fewer and fewer of those
    reserved: float = 0.1  # of the budget stays for it, even where the work of every step takes all of it
    cost: float | None = None
    samples: int = 0
    next_step: int = 0
    last_time: float = 0.0


@dataclass(slots=True)
class Budget:
    """The budget of one training; `fraction` is the part of the step time that Holdfast may take (0.01 is 1 %)."""

    fraction: float = 0.01
    always_done: frozenset[str] = frozenset()  # sampled metrics that are taken at every step, whatever they cost
    step_seconds: float = 0.0
    always: float = 0.0  # seconds per step of what is done at every step
    next_step: int = 0  # nothing is due before this step
    closer: int = 0  # extra samples so far
    again: int = 0  # samples of the gradients that are to follow soon
    repeated: int = 0  # how often that was wanted
    loss: float = 0.0  # of the last step
    loss_change: float = 0.0  # mean absolute change of the loss from step to step: a loss that falls steadily is not noisy
    lr: float = 0.0  # of the last step
    weight_norm: float = 0.0  # of the last sample
    weight_change: float = 0.0  # of it since the sample before, as a fraction
    meeting: int = 0  # with several ranks: all sample weight norms at multiples of this step, so that they can be compared
    meetings_only: bool = False  # one of very many ranks: nothing else is sampled
    started: float = field(default_factory=time.monotonic)
    metrics: dict[str, SampledMetric] = field(
        default_factory=lambda: {
            "parameters": SampledMetric(share=0.25, first_step=1),
            "weights": SampledMetric(share=0.20, first_step=2),
            "weight-norm": SampledMetric(share=0.20, first_step=2, adds_rows=False, reserved=1.0),
            "modules": SampledMetric(share=0.25, first_step=3),
            "inputs": SampledMetric(share=0.05, first_step=1, with_update=False),
            "held-out": SampledMetric(share=0.05, first_step=1, with_update=False),
        }
    )

    def end_step(self, step: int, seconds: float, always: float, loss: float | None, lr: float | None) -> None:
        """Add one step: its duration, the part of it that Holdfast's work of every step took, and what the host knows of it.

        A loss that jumps, or a learning rate that falls, is looked at closer at the next step.
        """
        if seconds - seconds == 0.0:  # it is MISSING for the first
            if self.step_seconds == 0.0:
                self.step_seconds, self.always = seconds, always
            self.step_seconds += (1 - _MOMENTUM) * (seconds - self.step_seconds)
            self.always += (1 - _MOMENTUM) * (always - self.always)
        if loss is None or lr is None:
            return
        rise = loss - self.loss
        if rise > _SPIKE * self.loss_change > 0.0 or _LR_DROP * lr < self.lr:
            self.look_closer(step + 1)
        self.lr = lr
        if abs(rise) < math.inf:  # not NaN either
            self.loss_change += 0.1 * (abs(rise) - self.loss_change) if self.loss_change else abs(loss)
            self.loss = loss

    def charge(self, name: str, seconds: float) -> None:
        """Add the cost of one sample."""
        metric = self.metrics[name]
        metric.samples += 1
        if metric.cost is not None:
            metric.cost = (metric.cost + seconds) / 2
        elif metric.samples > 1:  # the first one includes warm-up: compiling, writing names
            metric.cost = seconds

    def due(self, name: str, step: int) -> bool:
        """Whether to sample this metric at this step; true at most once a step."""
        metric = self.metrics[name]
        if name in self.always_done:
            return step >= metric.first_step
        meets = self.meeting and name == "parameters" and step % self.meeting == 0 and step > 0
        if (step < metric.next_step or self.meetings_only) and not meets:
            return False
        now = time.monotonic()
        early = step < metric.first_step
        metric.next_step = metric.first_step if early else step + self.interval(name)
        soonest = min(other.next_step for other in self.metrics.values() if other.with_update)
        if self.meeting:
            soonest = min(soonest, step - step % self.meeting + self.meeting)
        self.next_step = 0 if self.always_done else soonest
        rests = metric.adds_rows and step > _OPENING_STEPS and now - metric.last_time < self._pause(now)
        if early or (rests and not meets):
            return False
        metric.last_time = now
        if self.again and name == "parameters":
            self._sample_soon(step)
        return True

    def note_weights(self, step: int, norm: float) -> None:
        """Look closer at the next step if the norm of all weights jumps: the parameters show which one."""
        if self.weight_norm > 0.0 and norm != self.weight_norm:
            change = abs(norm / self.weight_norm - 1.0)
            if not change <= max(_WEIGHTS, _SPIKE * self.weight_change):  # NaN and Inf are jumps too
                self.look_closer(step + 1)
            self.weight_change = change
        self.weight_norm = norm

    def look_closer(self, step: int) -> None:
        """Take an extra sample of gradients and weights at this step; limited to a few per thousand steps."""
        if self.closer * _CLOSER_EVERY > step or min(self.metrics[name].samples for name in _CLOSER) == 0:
            return
        self.closer += 1
        for name in _CLOSER:
            self.metrics[name].next_step, self.metrics[name].last_time = step, 0.0
        self.next_step = 0

    def look_again(self, step: int) -> None:
        """Sample the gradients of a few more steps soon: a parameter without one in this step may only not be used in all."""
        if self.repeated < _REPEATED_AT_MOST:
            self.repeated, self.again = self.repeated + 1, _AGAIN
            self._sample_soon(step)

    def _sample_soon(self, step: int) -> None:
        metric, self.again = self.metrics["parameters"], self.again - 1
        metric.next_step, metric.last_time = step + _AGAIN_AFTER, 0.0
        self.next_step = min(self.next_step, metric.next_step)

    def interval(self, name: str) -> int:
        """Steps between two samples, so that the metric stays within its fraction of the budget."""
        metric = self.metrics[name]
        if metric.cost is None or self.step_seconds <= 0.0:
            return _MIN_INTERVAL
        budget = self.fraction * self.step_seconds
        steps = metric.cost / (metric.share * max(budget - self.always, metric.reserved * budget))
        return int(min(max(steps, _MIN_INTERVAL), _MAX_INTERVAL)) + 1

    def _pause(self, now: float) -> float:
        """Minimum seconds between samples: 1 at first, up to 60 in a long run, so that disk use stays bounded."""
        return min(60.0, max(1.0, (now - self.started) / 600.0))
