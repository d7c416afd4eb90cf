"""The common step, noted in as few calls as can be: one optimizer, one backward pass, sound numbers, nothing to sample.

In a step of a millisecond each call of Python costs a microsecond or two, as the caches hold the training's own data then.
`Runtime` and `Training` make some twenty calls for a step; this makes half as many. Any other step goes the long way, which
decides after each step whether the next may be a common one.
"""

from __future__ import annotations

import math
import time

import torch

from holdfast.inside.gradients.host import quick_norm
from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.inside.manual_updates import LOOK_AFTER_STEPS
from holdfast.inside.members import Member
from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.observers.losses import Losses
from holdfast.inside.process import Process
from holdfast.inside.training import LOOK_AT_RATES, Training
from holdfast.state.parameters import parameters_of

Optimizer = torch.optim.Optimizer
# They leave gradients as they are. Nothing has to be known before their update if it is not guarded, and the optimizer has just
# looked at every gradient: to be the first one to do so costs the host a microsecond or two for each.
_KEEP_GRADIENTS = (torch.optim.Adam, torch.optim.AdamW)


class CommonStep:
    """The common step of one training, in the thread that trains it."""

    def __init__(self, process: Process, training: Training, member: Member) -> None:
        self._process, self._thread, self._training, self._member = process, process.thread, training, member
        self._changes = training.changed
        self._metrics: StepMetrics | None = None  # of the update in progress; on a GPU they may be read when it is done

    def before_update(self, optimizer: Optimizer) -> bool:
        """The gradients of an optimizer are complete."""
        begun, process, thread, training = time.perf_counter(), self._process, self._thread, self._training
        losses, guard = thread.losses, training.guard
        if (
            self._member.optimizer() is not optimizer
            or self._changes != training.changed
            or training.losses is not losses
            or losses.count != 1
            or training.step >= training.budget.next_step
            or training.settings is not None
            or thread.evaluation is not None
            or process.on_step_boundary is not None
            or process.stopping is not None
        ):
            return False
        early = training.read_early if training.has_read_early() else None  # when the script clipped
        if self._member.kernel is None and training.reader is None:
            metrics = early or StepMetrics(None)
            norm = quick_norm(parameters_of(optimizer)) if early is None else early.norm
            loss, rate = losses.on_host, optimizer.param_groups[0].get("lr")
            is_plain = metrics.stats is None and loss is not None and type(rate) is float
            if not is_plain or norm is None or not 0.0 <= norm < math.inf:
                return False
            metrics.norm, metrics.loss, metrics.lr = norm, loss, rate
        elif early is None and guard is None and type(optimizer) in _KEEP_GRADIENTS and not optimizer._optimizer_step_post_hooks:
            self._metrics, losses.is_complete = None, True  # a hook may clear the gradients; else they are read after the update
            thread.cost += time.perf_counter() - begun
            return True
        else:
            metrics = self._read_on_device(optimizer, losses, early)
            if metrics.reader is None:  # the model has moved
                return False
        self._metrics, training.read_early = metrics, None
        losses.is_complete = True  # also if the update raises: the next backward pass begins a new step
        if guard is not None:
            guard.before(optimizer, metrics, training.step, is_main=True, clipped_at=training.clip_norm)
        if metrics.reader is not None:
            metrics.start()
        thread.cost += time.perf_counter() - begun
        return True

    def after_update(self, optimizer: Optimizer) -> None:
        """The update is done."""
        begun, thread, training, member = time.perf_counter(), self._thread, self._training, self._member
        guard, metrics, self._metrics = training.guard, self._metrics, None
        training.cost += thread.cost
        thread.cost, thread.backwards, thread.look_at = 0.0, 0, LOOK_AFTER_STEPS
        if metrics is None:
            metrics = self._read_on_device(optimizer, thread.losses, None)
            metrics.start()
        member.steps += 1
        skipped = guard is not None and guard.after(optimizer, metrics, skipped=False, is_main=True)
        rate = metrics.lr
        if rate is None or rate != member.rate or len(optimizer.param_groups) > 1 or member.steps % LOOK_AT_RATES == 0:
            training.note_rates(optimizer, member, rate)
        training.end_step(member, metrics, None, skipped=skipped)
        if training.control is not None:
            training.control.between_steps(training.step, good=not skipped)
        HEARTBEAT.stepped(training.step)
        if thread.feed is not None and thread.feed.batches is not None:
            thread.feed.batches.end_step()
        training.cost += time.perf_counter() - begun

    def _read_on_device(self, optimizer: Optimizer, losses: Losses, early: StepMetrics | None) -> StepMetrics:
        """What is read there is known later; `early` is what was read before the script clipped the gradients."""
        metrics = early or self._member.read(parameters_of(optimizer), self._training, each=False)
        self._training.reader = metrics.reader or self._training.reader
        metrics.add_loss(losses.total())
        if type(rate := optimizer.param_groups[0].get("lr")) is float:
            metrics.lr = rate
        else:
            metrics.add("lr", rate)
        return metrics
