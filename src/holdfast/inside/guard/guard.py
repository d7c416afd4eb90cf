"""The guard of one training: looks at every update before it is made, and leaves out or clips what would do harm.

On the host the numbers are there: one comparison. On a GPU with a fused optimizer the decision is made on the device, and
told here when the numbers have come; with another optimizer one number is waited for. Under DDP gradients are already the
same on every rank, so the ranks agree by themselves, as long as nobody listens to the loss of one rank alone; with sharded
parameters one number is reduced, among the ranks that share them.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import Any

import torch
from torch import nn

from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.inside.guard.averages import Averages
from holdfast.inside.guard.batchnorm import RunningStatistics
from holdfast.inside.guard.report import Report
from holdfast.inside.guard.skipping import Flag, NormHistory, SkippedUpdate, takes_a_flag
from holdfast.inside.members import parameters_of
from holdfast.inside.policy import Policy
from holdfast.inside.ranks import RankAgreement, sharing_ranks, world_size

Optimizer = torch.optim.Optimizer
_IN_A_ROW = 5  # so many clipped updates in a row are a new level, not a spike
_LOOK_EVERY = 32  # steps, at whether other parameters are trained now
_BEFORE = 8  # steps whose loss and norm are told with a finding


class Guard:
    """Leaves out updates that are not finite; under `heal` clips those that are far too large."""

    def __init__(self, policy: Policy, report: Report, averages: Averages) -> None:
        self.policy, self.report, self.averages = policy, report, averages
        self.failure_context, self.statistics = report.failure_context, RunningStatistics(())
        self.norms = NormHistory()
        self.max_norm = math.inf  # an action may set a lower one
        self.cannot_clip = ""  # why, in words: the last update was not one whose gradients are clipped here
        self.last_skipped = False  # whether the last update was; on a GPU it may not be known yet
        self.num_skipped = 0
        self._now: SkippedUpdate | None = None
        self._flag: Flag | None = None
        self._last_flag: torch.Tensor | None = None
        self._bad: tuple[int, str, StepMetrics] | None = None  # the update that is bad now, reported when its step is over
        self._clipped_in_a_row, self._trained = 0, (0, 0)
        self._past: deque[tuple[float | None, float | None]] = deque(maxlen=_BEFORE)
        self._together: weakref.WeakKeyDictionary[Optimizer, RankAgreement | None] = weakref.WeakKeyDictionary()
        self._several = world_size() > 1

    # Before an update

    def before(
        self, optimizer: Optimizer, metrics: StepMetrics, step: int, *, is_main: bool, clipped_at: float | None = None
    ) -> None:
        """The numbers of an update are gathered: leave it out, clip it, or let it be. A scaler leaves out by itself."""
        if is_main:
            self.averages.let_go()
        self._end()  # a step that raised has left one behind
        self._bad = None
        if metrics.scale is not None:
            self.cannot_clip = "a gradient scaler is in use"
            return
        together = self._sharing(optimizer) if self._several else None
        if metrics.reader is not None or (
            together is not None and together.on_device
        ):  # a rank without a gradient takes part alike
            self.cannot_clip = "the gradients are on a GPU"
            self._before_on_device(optimizer, metrics, together)
            return
        self.cannot_clip = ""
        norm, code = self._judge(metrics, together)
        if code is not None:
            if self.policy.guards(code):
                self._now = self._skip(optimizer)
            self._bad = (step, code, metrics)
            return
        if is_main and norm is not None:
            self._clip(optimizer, metrics, norm if clipped_at is None else min(norm, clipped_at), step)

    def _judge(self, metrics: StepMetrics, together: RankAgreement | None) -> tuple[float | None, str | None]:
        """The norm of all gradients, over the ranks that share them, and the code of what is wrong with them."""
        norm, bad = _norm(metrics), _is_bad(metrics)
        if together is not None:
            square = math.nan if bad else 0.0 if norm is None else norm * norm
            norm = math.sqrt(total) if (total := together.sum(square)) >= 0.0 else math.nan
            bad = not math.isfinite(norm)
        loss = metrics.loss
        if loss is not None and not math.isfinite(loss) and (bad or not self._several):
            return norm, "non-finite-loss"
        return norm, "non-finite-gradient" if bad else None

    def _clip(self, optimizer: Optimizer, metrics: StepMetrics, norm: float, step: int) -> None:
        limit = min(self.norms.limit(), self.max_norm)
        if norm <= limit or not self.policy.heals_from("gradient-explosion"):
            self._clipped_in_a_row = 0
            self.norms.add(norm)
            if self.norms.seen % _LOOK_EVERY == 1:
                self._trained = _trained_by(optimizer)
            return
        if limit != self.max_norm and _trained_by(optimizer) != self._trained:  # other parameters have other norms
            self._trained = _trained_by(optimizer)
            self.norms.forget()
            self.norms.add(norm)
            return
        to = min(self.norms.largest, self.max_norm) if limit != self.max_norm else self.max_norm
        self._clipped_in_a_row += 1
        if limit != self.max_norm and self._clipped_in_a_row > _IN_A_ROW:
            self.norms.add(norm)
            return
        gradients = [parameter.grad for parameter in parameters_of(optimizer) if parameter.grad is not None]
        torch._foreach_mul_(gradients, to / norm)
        if limit != self.max_norm:
            self.report.clipped(step, metrics, norm=norm, limit=to)

    def _before_on_device(self, optimizer: Optimizer, metrics: StepMetrics, together: RankAgreement | None) -> None:
        if not self.policy.guards("non-finite-gradient"):
            return
        flag = metrics.flag(with_loss=not self._several)
        if together is not None:
            flag = together.any(_is_bad(metrics) if flag is None else flag)
        if flag is None:
            return
        if takes_a_flag(optimizer) and not self.averages:
            self._flag = Flag(optimizer, flag)
            metrics.add("found_inf", self._flag.value)
            return
        metrics.found_inf = flag.item()
        if metrics.found_inf:
            self._now = self._skip(optimizer)

    # After it

    def after(
        self, optimizer: Optimizer, metrics: StepMetrics | None, *, skipped: bool, is_main: bool, inner: bool = False
    ) -> bool:
        """The step is over; whether its update was left out, as far as the host knows."""
        flag, was_skipped = self._flag, self._now is not None
        skipped = skipped or bool(metrics is not None and metrics.reader is None and metrics.found_inf)
        self._end(optimizer)
        bad, self._bad = self._bad, None
        if not is_main:
            if bad is not None:
                words = (
                    f"{type(optimizer).__name__} of an inner loop" if inner else f"{type(optimizer).__name__}, not the main one"
                )
                self.report.bad_update(*bad, list(self._past), was_skipped=was_skipped, optimizer=words)
            return was_skipped
        self.last_skipped = was_skipped
        if flag is not None and not skipped:
            if self.statistics:
                self.statistics.keep_unless(flag.value)
        elif self.statistics:
            if was_skipped or skipped:
                self.statistics.put_back()
            else:
                self.statistics.keep()
        if bad is not None and metrics is not None:
            self.report.bad_update(*bad, list(self._past), was_skipped=was_skipped, at_once=True)
        if was_skipped:
            self.num_skipped += 1
            self.averages.hold()
        elif metrics is not None and metrics.reader is None:
            self._past.append((metrics.loss, _norm(metrics)))
        return was_skipped

    def learn_models(self, models: list[nn.Module]) -> None:
        """The models are known, or known better: whose running statistics to keep."""
        self.statistics = RunningStatistics(models)

    def start_again(self) -> None:
        """The training was rolled back: what was seen since is no measure any more."""
        self.norms.forget()
        self.statistics.forget()
        self._past.clear()

    def arrived(self, step: int, metrics: StepMetrics) -> None:
        """The numbers of a step have come from the device: tell what was decided there."""
        loss_is_bad = metrics.loss is not None and not math.isfinite(metrics.loss)
        if metrics.found_inf and metrics.scale is None:
            code = "non-finite-loss" if loss_is_bad else "non-finite-gradient"
            self.report.bad_update(step, code, metrics, list(self._past), was_skipped=True)
            self.num_skipped += 1
        else:
            self._past.append((metrics.loss, _norm(metrics)))

    def last_was_skipped(self) -> bool:
        """Whether the last update was left out, waiting for the device if only it knows."""
        return self.last_skipped or (self._last_flag is not None and bool(self._last_flag.item()))

    def _skip(self, optimizer: Any) -> SkippedUpdate:
        """The optimizer finds no gradients; a script that updates by hand finds zeros."""
        parameters = parameters_of(optimizer)
        if isinstance(optimizer, torch.optim.Optimizer):
            return SkippedUpdate(parameters)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        return SkippedUpdate([])

    def _end(self, optimizer: Optimizer | None = None) -> None:
        if self._now is not None:
            self._now.give_back()
            self._now = None
        if self._flag is not None and optimizer is not None:
            self._last_flag = self._flag.value
            self._flag.take_away(optimizer)
            self._flag = None
        elif optimizer is not None:
            self._last_flag = None

    def _sharing(self, optimizer: Optimizer) -> RankAgreement | None:
        """Who shares the parameters of this optimizer, found once."""
        if optimizer not in self._together:
            self._together[optimizer], unknown = sharing_ranks(parameters_of(optimizer))
            if unknown:
                self.report.cannot("guard", f"{unknown}: each rank decides alone whether an update is skipped")
        return self._together[optimizer]


def _trained_by(optimizer: Optimizer) -> tuple[int, int]:
    """Which optimizer it is, and how many tensors it trains now."""
    return id(optimizer), sum(parameter.grad is not None for parameter in parameters_of(optimizer))


def _norm(metrics: StepMetrics) -> float | None:
    return metrics.stats.norm if metrics.stats is not None else metrics.norm


def _is_bad(metrics: StepMetrics) -> bool:
    """Whether gradients that were read on the host are not finite; none at all are no harm."""
    norm = _norm(metrics)
    return (metrics.stats is not None and metrics.stats.non_finite > 0) or (norm is not None and not math.isfinite(norm))
