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

from holdfast.inside.gradients.step_metrics import Gathering
from holdfast.inside.guard.averages import Averages
from holdfast.inside.guard.batchnorm import RunningStatistics
from holdfast.inside.guard.clipping import NormHistory
from holdfast.inside.guard.report import Report
from holdfast.inside.guard.skipping import Flag, LeftOut, takes_a_flag
from holdfast.inside.optimizer_member import parameters_of
from holdfast.inside.policy import Policy
from holdfast.inside.ranks import Together, sharing_ranks, world_size

Optimizer = torch.optim.Optimizer
_IN_A_ROW = 5  # so many clipped updates in a row are a new level, not a spike
_LOOK_EVERY = 32  # steps, at whether other parameters are trained now
_BEFORE = 8  # steps whose loss and norm are told with a finding


class Guard:
    """Leaves out updates that are not finite; under `heal` clips those that are far too large."""

    def __init__(self, policy: Policy, report: Report, averages: Averages) -> None:
        self.policy, self.report, self.averages = policy, report, averages
        self.blame, self.statistics = report.blame, RunningStatistics(())
        self.norms = NormHistory()
        self.max_norm = math.inf  # an action may set a lower one
        self.cannot_clip = ""  # why, in words: the last update was not one whose gradients are clipped here
        self.just_left_out = False  # whether the last update was; on a GPU it may not be known yet
        self.left_out = 0
        self._now: LeftOut | None = None
        self._flag: Flag | None = None
        self._last_flag: torch.Tensor | None = None
        self._bad: tuple[int, str, Gathering] | None = None  # the update that is bad now, reported when its step is over
        self._clipped_in_a_row, self._trained = 0, (0, 0)
        self._past: deque[tuple[float | None, float | None]] = deque(maxlen=_BEFORE)
        self._together: weakref.WeakKeyDictionary[Optimizer, Together | None] = weakref.WeakKeyDictionary()
        self._several = world_size() > 1

    # Before an update

    def before(
        self, optimizer: Optimizer, numbers: Gathering, step: int, *, is_main: bool, clipped_at: float | None = None
    ) -> None:
        """The numbers of an update are gathered: leave it out, clip it, or let it be. A scaler leaves out by itself."""
        if is_main:
            self.averages.let_go()
        self._end()  # a step that raised has left one behind
        self._bad = None
        if numbers.scale is not None:
            self.cannot_clip = "a gradient scaler is in use"
            return
        together = self._sharing(optimizer) if self._several else None
        if numbers.courier is not None or (
            together is not None and together.on_device
        ):  # a rank without a gradient takes part alike
            self.cannot_clip = "the gradients are on a GPU"
            self._before_on_device(optimizer, numbers, together)
            return
        self.cannot_clip = ""
        norm, code = self._judge(numbers, together)
        if code is not None:
            if self.policy.guards(code):
                self._now = self._leave_out(optimizer)
            self._bad = (step, code, numbers)
            return
        if is_main and norm is not None:
            self._clip(optimizer, numbers, norm if clipped_at is None else min(norm, clipped_at), step)

    def _judge(self, numbers: Gathering, together: Together | None) -> tuple[float | None, str | None]:
        """The norm of all gradients, over the ranks that share them, and the code of what is wrong with them."""
        norm, bad = _norm(numbers), _is_bad(numbers)
        if together is not None:
            square = math.nan if bad else 0.0 if norm is None else norm * norm
            norm = math.sqrt(total) if (total := together.sum(square)) >= 0.0 else math.nan
            bad = not math.isfinite(norm)
        loss = numbers.loss
        if loss is not None and not math.isfinite(loss) and (bad or not self._several):
            return norm, "non-finite-loss"
        return norm, "non-finite-gradient" if bad else None

    def _clip(self, optimizer: Optimizer, numbers: Gathering, norm: float, step: int) -> None:
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
            self.report.clipped(step, numbers, norm=norm, limit=to)

    def _before_on_device(self, optimizer: Optimizer, numbers: Gathering, together: Together | None) -> None:
        if not self.policy.guards("non-finite-gradient"):
            return
        flag = numbers.flag(with_loss=not self._several)
        if together is not None:
            flag = together.any(_is_bad(numbers) if flag is None else flag)
        if flag is None:
            return
        if takes_a_flag(optimizer) and not self.averages:
            self._flag = Flag(optimizer, flag)
            numbers.add("found_inf", self._flag.value)
            return
        numbers.found_inf = flag.item()
        if numbers.found_inf:
            self._now = self._leave_out(optimizer)

    # After it

    def after(
        self, optimizer: Optimizer, numbers: Gathering | None, *, skipped: bool, is_main: bool, inner: bool = False
    ) -> bool:
        """The step is over; whether its update was left out, as far as the host knows."""
        flag, left_out = self._flag, self._now is not None
        skipped = skipped or bool(numbers is not None and numbers.courier is None and numbers.found_inf)
        self._end(optimizer)
        bad, self._bad = self._bad, None
        if not is_main:
            if bad is not None:
                words = (
                    f"{type(optimizer).__name__} of an inner loop" if inner else f"{type(optimizer).__name__}, not the main one"
                )
                self.report.bad_update(*bad, list(self._past), left_out=left_out, optimizer=words)
            return left_out
        self.just_left_out = left_out
        if flag is not None and not skipped:
            if self.statistics:
                self.statistics.keep_unless(flag.value)
        elif self.statistics:
            if left_out or skipped:
                self.statistics.put_back()
            else:
                self.statistics.keep()
        if bad is not None and numbers is not None:
            self.report.bad_update(*bad, list(self._past), left_out=left_out, at_once=True)
        if left_out:
            self.left_out += 1
            self.averages.hold()
        elif numbers is not None and numbers.courier is None:
            self._past.append((numbers.loss, _norm(numbers)))
        return left_out

    def learn_models(self, models: list[nn.Module]) -> None:
        """The models are known, or known better: whose running statistics to keep."""
        self.statistics = RunningStatistics(models)

    def start_again(self) -> None:
        """The training was rolled back: what was seen since is no measure any more."""
        self.norms.forget()
        self.statistics.forget()
        self._past.clear()

    def arrived(self, step: int, numbers: Gathering) -> None:
        """The numbers of a step have come from the device: tell what was decided there."""
        loss_is_bad = numbers.loss is not None and not math.isfinite(numbers.loss)
        if numbers.found_inf and numbers.scale is None:
            code = "non-finite-loss" if loss_is_bad else "non-finite-gradient"
            self.report.bad_update(step, code, numbers, list(self._past), left_out=True)
            self.left_out += 1
        else:
            self._past.append((numbers.loss, _norm(numbers)))

    def last_was_left_out(self) -> bool:
        """Whether the last update was left out, waiting for the device if only it knows."""
        return self.just_left_out or (self._last_flag is not None and bool(self._last_flag.item()))

    def _leave_out(self, optimizer: Any) -> LeftOut:
        """The optimizer finds no gradients; a script that updates by hand finds zeros."""
        parameters = parameters_of(optimizer)
        if isinstance(optimizer, torch.optim.Optimizer):
            return LeftOut(parameters)
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        return LeftOut([])

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

    def _sharing(self, optimizer: Optimizer) -> Together | None:
        """Who shares the parameters of this optimizer, found once."""
        if optimizer not in self._together:
            self._together[optimizer], unknown = sharing_ranks(parameters_of(optimizer))
            if unknown:
                self.report.cannot("guard", f"{unknown}: each rank decides alone whether an update is skipped")
        return self._together[optimizer]


def _trained_by(optimizer: Optimizer) -> tuple[int, int]:
    """Which optimizer it is, and how many tensors it trains now."""
    return id(optimizer), sum(parameter.grad is not None for parameter in parameters_of(optimizer))


def _norm(numbers: Gathering) -> float | None:
    return numbers.reading.norm if numbers.reading is not None else numbers.norm


def _is_bad(numbers: Gathering) -> bool:
    """Whether gradients that were read on the host are not finite; none at all are no harm."""
    norm = _norm(numbers)
    return (numbers.reading is not None and numbers.reading.non_finite > 0) or (norm is not None and not math.isfinite(norm))
