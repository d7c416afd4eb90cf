"""The guard of one training: checks every update before it is applied, and skips or clips the bad ones.

On the host this is one comparison. On a GPU a fused optimizer skips by a flag on the device, and the result is reported when the
metrics arrive; any other optimizer has to wait for one number. Under DDP the gradients are the same on every rank, so all ranks
agree, as long as the loss of a single rank does not count. With sharded parameters one number is reduced over the ranks that
share them. The stages of a pipeline vote, and each waits for the others.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from functools import partial
from typing import Any

import torch
from torch import nn

from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.inside.guard.batchnorm import RunningStatistics
from holdfast.inside.guard.report import Report
from holdfast.inside.guard.skipping import Averages, NormHistory, SkipFlag, SkippedUpdate, supports_skip_flag
from holdfast.inside.policy import Policy
from holdfast.inside.ranks import RankAgreement, StageAgreement, sharing_ranks, stages_of, world_size
from holdfast.state.parameters import parameters_of

Optimizer = torch.optim.Optimizer
_MAX_CLIPPED_IN_A_ROW = 5  # more are a new level, not a spike
_CHECK_TRAINED_EVERY = 32  # steps, whether other parameters are trained now
_PAST_STEPS = 8  # whose loss and norm are part of a finding


class Guard:
    """Skips updates that are not finite; under `heal` it clips those that are far too large."""

    def __init__(self, policy: Policy, report: Report, averages: Averages) -> None:
        self.policy, self.report, self.averages = policy, report, averages
        self.statistics = RunningStatistics(())
        self._has_statistics = False
        self.norms = NormHistory()
        self.max_norm = math.inf  # an action may set a lower one
        self.cannot_clip = ""  # why the gradients of the last update could not be clipped here
        self.last_skipped = False  # whether the last update was skipped; on a GPU it may not be known yet
        self.num_skipped = 0
        self._skipped: SkippedUpdate | None = None
        self._flag: SkipFlag | None = None
        self._last_flag: torch.Tensor | None = None
        self._bad: tuple[int, str, StepMetrics] | None = None  # the bad update in progress, reported after its step
        self._clipped_in_a_row, self._trained = 0, (0, 0)
        self._past: deque[tuple[float | None, float | None]] = deque(maxlen=_PAST_STEPS)
        self._agreements: weakref.WeakKeyDictionary[Optimizer, RankAgreement | None] = weakref.WeakKeyDictionary()
        self._several = world_size() > 1
        self._stages: StageAgreement | None = None  # of the main optimizer, looked for at its first update
        self._has_looked_for_stages = False
        self._has_voted = False  # whether the ranks with shards have this rank's number for the update in progress
        self._clips, self._skips_on_device = policy.heals_from("gradient-explosion"), policy.guards("non-finite-gradient")

    # Before an update

    def before(
        self, optimizer: Optimizer, metrics: StepMetrics, step: int, *, is_main: bool, clipped_at: float | None = None
    ) -> None:
        """Check an update: skip it, clip it, or let it pass. A gradient scaler skips by itself."""
        if is_main and self.averages.has_saved:
            self.averages.restore()
        if self._skipped is not None or self._flag is not None:
            self._end()  # a step that raised has left one
        self._bad, self._has_voted = None, False
        if metrics.scale is not None:
            self.cannot_clip = "a gradient scaler is in use"
            return
        agreement = self._agreement_of(optimizer) if self._several else None
        stages = self._stages_of(optimizer) if self._several and is_main else None
        on_device = agreement is not None and agreement.on_device  # also on a rank without a gradient
        if metrics.reader is not None or on_device:
            self.cannot_clip = "the gradients are on a GPU"
            self._before_on_device(optimizer, metrics, agreement, stages)
            return
        self.cannot_clip = ""
        norm, code, loss = metrics.norm, None, metrics.loss
        is_sound = norm is not None and norm - norm == 0.0 and (loss is None or loss - loss == 0.0)  # the common step
        if not is_sound or metrics.stats is not None or agreement is not None:
            norm, code = self._judge(metrics, agreement)
        if stages is not None and stages.any(code is not None) and code is None:
            code = "non-finite-gradient"
        if code is not None:
            if self.policy.guards(code):
                self._skipped = self._skip(optimizer)
            self._bad = (step, code, metrics)
            return
        if is_main and self._clips and norm is not None:
            self._clip(optimizer, metrics, norm if clipped_at is None else min(norm, clipped_at), step)

    def _judge(self, metrics: StepMetrics, agreement: RankAgreement | None) -> tuple[float | None, str | None]:
        """The gradient norm over the ranks that share the parameters, and the finding code of a bad update."""
        norm, bad = metrics.gradient_norm, metrics.has_bad_gradient
        if agreement is not None:
            self._has_voted = True
            square = math.nan if bad else 0.0 if norm is None else norm * norm
            norm = math.sqrt(total) if (total := agreement.sum(square)) >= 0.0 else math.nan
            bad = not math.isfinite(norm)
        if metrics.has_bad_loss and (bad or not self._several):
            return norm, "non-finite-loss"
        return norm, "non-finite-gradient" if bad else None

    def _clip(self, optimizer: Optimizer, metrics: StepMetrics, norm: float, step: int) -> None:
        limit = min(self.norms.limit(), self.max_norm)
        if norm <= limit:
            self._clipped_in_a_row = 0
            self.norms.add(norm)
            if self.norms.seen % _CHECK_TRAINED_EVERY == 1:
                self._trained = _trained_by(optimizer)
            return
        if limit != self.max_norm and _trained_by(optimizer) != self._trained:  # other parameters, other norms
            self._trained = _trained_by(optimizer)
            self.norms.forget()
            self.norms.add(norm)
            return
        max_norm = min(self.norms.largest, self.max_norm) if limit != self.max_norm else self.max_norm
        self._clipped_in_a_row += 1
        if limit != self.max_norm and self._clipped_in_a_row > _MAX_CLIPPED_IN_A_ROW:
            self.norms.add(norm)
            return
        gradients = [parameter.grad for parameter in parameters_of(optimizer) if parameter.grad is not None]
        torch._foreach_mul_(gradients, max_norm / norm)
        if limit != self.max_norm:
            self.report.clipped(step, metrics, norm=norm, limit=max_norm)

    def _before_on_device(
        self, optimizer: Optimizer, metrics: StepMetrics, agreement: RankAgreement | None, stages: StageAgreement | None
    ) -> None:
        if not self._skips_on_device:
            return
        flag = metrics.flag(with_loss=not self._several)
        if agreement is not None:
            self._has_voted = True
            flag = agreement.any(metrics.has_bad_gradient if flag is None else flag)
        if stages is not None:  # they meet on the host
            metrics.found_inf = float(stages.any(bool(flag is not None and flag.item())))
            if metrics.found_inf:
                self._skipped = self._skip(optimizer)
            return
        if flag is None:
            return
        if supports_skip_flag(optimizer) and not self.averages:
            self._flag = SkipFlag(optimizer, flag)
            metrics.add("found_inf", self._flag.value)
            return
        metrics.found_inf = flag.item()
        if metrics.found_inf:
            self._skipped = self._skip(optimizer)

    # After an update

    def after(
        self, optimizer: Optimizer, metrics: StepMetrics | None, *, skipped: bool, is_main: bool, inner: bool = False
    ) -> bool:
        """Finish a step; whether its update was skipped, as far as the host knows."""
        flag, was_skipped, self._has_voted = self._flag, self._skipped is not None, False
        skipped = skipped or bool(metrics is not None and metrics.reader is None and metrics.found_inf)
        if was_skipped or flag is not None or self._last_flag is not None:
            self._end(optimizer)
        bad, self._bad = self._bad, None
        if not is_main:
            if bad is not None:
                name = f"{type(optimizer).__name__}{' of an inner loop' if inner else ', not the main one'}"
                self.report.bad_update(*bad, list(self._past), was_skipped=was_skipped, optimizer=name)
            return was_skipped
        self.last_skipped = was_skipped
        if self._has_statistics:
            if flag is not None and not skipped:
                self.statistics.keep_unless(flag.value)
            elif was_skipped or skipped:
                self.statistics.put_back()
            else:
                self.statistics.keep()
        if bad is not None and metrics is not None:
            self.report.bad_update(*bad, list(self._past), was_skipped=was_skipped, at_once=True)
        if was_skipped:
            self.num_skipped += 1
            self.averages.save()
        elif metrics is not None and metrics.reader is None:
            self._past.append((metrics.loss, metrics.gradient_norm))
        return was_skipped

    def learn_models(self, models: list[nn.Module]) -> None:
        """Learn the models whose running statistics are kept."""
        self.statistics = RunningStatistics(models)
        self._has_statistics = bool(self.statistics)

    def start_again(self) -> None:
        """Forget the norms and statistics of the steps that were rolled back."""
        self.norms.forget()
        self.statistics.forget()
        self._past.clear()

    def arrived(self, step: int, metrics: StepMetrics) -> None:
        """Report what the device decided; the metrics of the step have arrived."""
        if metrics.found_inf and metrics.scale is None:
            code = "non-finite-loss" if metrics.has_bad_loss else "non-finite-gradient"
            self.report.bad_update(step, code, metrics, list(self._past), was_skipped=True)
            self.num_skipped += 1
        else:
            self._past.append((metrics.loss, metrics.gradient_norm))

    def last_was_skipped(self) -> bool:
        """Whether the last update was skipped; waits for the device if only it knows."""
        return self.last_skipped or (self._last_flag is not None and bool(self._last_flag.item()))

    def _skip(self, optimizer: Any) -> SkippedUpdate:
        """Hide the gradients from an optimizer; zero them for a script that updates by hand."""
        if (skip_update := getattr(optimizer, "skip_update", None)) is not None:  # it stands in for a framework's optimizer
            return skip_update()  # type: ignore[no-any-return]
        parameters = parameters_of(optimizer)
        if isinstance(optimizer, torch.optim.Optimizer):
            return SkippedUpdate(parameters)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        return SkippedUpdate([])

    def _end(self, optimizer: Optimizer | None = None) -> None:
        if self._skipped is not None:
            self._skipped.give_back()
            self._skipped = None
        if self._flag is not None and optimizer is not None:
            self._last_flag = self._flag.value
            self._flag.remove(optimizer)
            self._flag = None
        elif optimizer is not None:
            self._last_flag = None

    def _agreement_of(self, optimizer: Optimizer) -> RankAgreement | None:
        """The agreement with the ranks that share this optimizer's parameters, determined once."""
        if optimizer not in self._agreements:
            self._agreements[optimizer], problem = sharing_ranks(parameters_of(optimizer))
            if problem:
                self.report.cannot("guard", f"{problem}: each rank decides alone whether an update is skipped")
        return self._agreements[optimizer]

    def _stages_of(self, optimizer: Optimizer) -> StageAgreement | None:
        """The agreement with the other stages of a pipeline, determined once; None where there is none, or it is over."""
        if not self._has_looked_for_stages:
            self._has_looked_for_stages = True
            self._stages = stages_of(parameters_of(optimizer), partial(self.report.cannot, "guard"))
        return self._stages

    def failed(self, optimizer: Optimizer) -> None:
        """This rank could not check an update: those that share its model get a number that changes nothing, or wait no more."""
        agreement = self._agreement_of(optimizer) if self._several and not self._has_voted else None
        if agreement is not None and (self._skips_on_device or not agreement.on_device):
            agreement.sum(0.0)
        self._has_voted = False
        if self._stages is not None:
            self._stages.leave()


def _trained_by(optimizer: Optimizer) -> tuple[int, int]:
    """The id of an optimizer and how many of its parameters have a gradient."""
    return id(optimizer), sum(parameter.grad is not None for parameter in parameters_of(optimizer))
