"""One optimizer of a training, and what is remembered of it between steps."""

from __future__ import annotations

import math
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import nn

from holdfast.inside.discovery import Models
from holdfast.inside.gradients.cuda import GradientKernel
from holdfast.inside.gradients.device_reader import DeviceReader
from holdfast.inside.gradients.host import AVAILABLE, HostPlan, quick_norm, read_each_on_host
from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.inside.observers import step_columns as at
from holdfast.inside.observers.loader import Loader
from holdfast.inside.observers.modules import ModuleTime
from holdfast.signals.schema import STEPS
from holdfast.state.parameters import parameters_of

Optimizer = torch.optim.Optimizer
_ALONE, _INNER_ALONE, _KEPT_ROWS = 64, 1000, 16  # steps
_SHARES_AT_MOST = 64  # sets of parameters that a script clips, of which is remembered whose they are


class Reader(Protocol):
    """The training whose gradients are read."""

    def names_of(self, parameters: list[torch.Tensor]) -> list[int]:
        """The codes of those that have a gradient."""

    def reader_for(self, device: torch.device) -> DeviceReader | None:
        """Who brings numbers from this device; None for the host."""


class Member:
    """One optimizer of a training, and what is remembered of it between steps."""

    def __init__(self, optimizer: Optimizer, *, is_inner: bool = False) -> None:
        self.optimizer, self.is_inner = weakref.ref(optimizer), is_inner
        self.rows: list[tuple[list[float | int], StepMetrics]] | None = None  # of what may become a training of its own
        self.size = sum(parameter.numel() for parameter in parameters_of(optimizer))
        self.steps = 0
        self.steps_alone = 0  # since the main optimizer stepped last
        self.rate: float | None = None
        self.kernel: GradientKernel | None = None
        self._reader: DeviceReader | None = None  # of the device that its gradients were on last
        self.names: list[int] = []
        self.plan: HostPlan | None = None
        self.quick = AVAILABLE  # until its gradients turn out to be of another kind
        self._shares: dict[tuple[int, int, int], tuple[bool, bool]] = {}
        self._which: tuple[int, ...] | None = None

    def knows(self, parameters: list[torch.Tensor], gradients: list[torch.Tensor]) -> bool:
        """Whether its plan and names are those of the gradients that are there now; of experts, others have some each time."""
        every = len(gradients) == len(parameters)
        if every and self._which is None and len(gradients) == len(self.names):
            return True
        which = None if every else tuple(id(parameter) for parameter in parameters if parameter.grad is not None)
        is_same, self._which = which == self._which and len(gradients) == len(self.names), which
        return is_same

    @property
    def steps_alone_at_most(self) -> int:
        """After so many steps without the main optimizer it is a training of its own."""
        return _ALONE if not self.is_inner else _INNER_ALONE if self.rows is None else _KEPT_ROWS

    def keep_row(self, metrics: StepMetrics, backwards: int, *, skipped: bool) -> None:
        """Keep what a step would be recorded as."""
        if self.rows is not None:
            row = [column.kind.missing for column in STEPS.columns]
            row[at.STEP], row[at.TIME], row[at.SKIPPED], row[at.BACKWARDS] = len(self.rows), time.time(), int(skipped), backwards
            self.rows.append((row, metrics))

    def share_in(self, parameters: list[torch.Tensor]) -> tuple[bool, bool]:
        """Whether some of these are this optimizer's, and whether they are exactly those that it trains."""
        key = (len(parameters), id(parameters[0]), id(parameters[-1]))
        covered = self._shares.get(key)
        if covered is None:
            optimizer = self.optimizer()
            own = {id(p) for p in parameters_of(optimizer) if p.requires_grad} if optimizer is not None else set()
            trainable = {id(p) for p in parameters if p.requires_grad}
            if len(self._shares) >= _SHARES_AT_MOST:
                self._shares.clear()
            covered = self._shares[key] = bool(own & trainable), own == trainable
        return covered

    def read(self, parameters: list[torch.Tensor], training: Reader, *, each: bool) -> StepMetrics:
        """Read the gradients of these parameters, all together or each. On the way of every step."""
        if self.quick and not each:
            norm = quick_norm(parameters)
            if norm is not None and 0.0 <= norm < math.inf:
                metrics = StepMetrics(None)
                metrics.norm = norm
                return metrics
            self.quick = norm is not None
        kernel = self.kernel
        if kernel is not None and len(self.names) == len(parameters) and self._which is None and kernel.finds(parameters):
            metrics = StepMetrics(self._reader)
            metrics.use_kernel(kernel, self.names, each=each)
            return metrics
        gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
        if not gradients:
            return StepMetrics(None)
        if gradients[0].is_cpu and not each:  # the common step of a training on the host
            metrics = StepMetrics(None)
            if not self.knows(parameters, gradients) or self.plan is None:
                self.names = training.names_of(parameters)
                self.plan = HostPlan(gradients)
            metrics.norm = self.plan.norm(gradients)
            if not math.isfinite(metrics.norm):
                metrics.stats = read_each_on_host(gradients, self.names).only_non_finite()
            return metrics
        self._reader = training.reader_for(gradients[0].device)
        metrics = StepMetrics(self._reader)
        if metrics.reader is not None:
            if not self.knows(parameters, gradients):
                self.names = training.names_of(parameters)
            self.kernel = metrics.read_on_device(gradients, self.names, each=each, kernel=self.kernel)
        else:
            metrics.stats = read_each_on_host(gradients, training.names_of(parameters))
        return metrics


_BEGINNING_STEPS, _BEGINNING_SECONDS = 16, 30.0  # in which a second optimizer may show that it works beside the first


class Members:
    """Who belongs to a training. As long as the main optimizer may still be another, the rows of its steps are held back."""

    def __init__(self, loader: Loader, models: Models, first: int) -> None:
        self.loader, self.models = loader, models
        self.members: dict[int, Member] = {}
        self.main: Member | None = None
        self.changed = 0  # how often one has joined or left
        self.has_inner_loops = False  # whether optimizers come and go while it trains
        self.short_before = 0  # trainings of a few steps right before this one
        self.step = self._first = first
        self.names_of = models.names_of  # at hand: it is used in a step
        self._unwritten: deque[tuple[list[float | int], StepMetrics, list[ModuleTime] | None]] = deque()
        self._began_at = time.perf_counter()
        self._expected: list[weakref.ref[Optimizer]] = []
        self._holding, self.beginning = False, 0
        self._held = (0.0, 0)  # seconds waited and samples drawn in the steps that are held back

    def join(self, optimizer: Optimizer) -> Member:
        """Take an optimizer in. The largest is the main one, as long as no row was written of another's steps."""
        self._forget_dead()
        member = self.members[id(optimizer)] = Member(optimizer)
        self.changed += 1
        main = self.main
        if main is None or main.optimizer() is None:
            self.main = member
        elif self._holding and member.size > main.size:
            self.main, self.step, self._holding = member, self._first, False
            self._unwritten.clear()
            self.beginning += 1
            self.loader.give_back(*self._held)
        return member

    def take_in(self, optimizer: Optimizer, *, keeps_rows: bool) -> None:
        """Take in the optimizer of an inner loop: guarded, but nothing of it is recorded, saved or repaired."""
        self._forget_dead()
        member = self.members[id(optimizer)] = Member(optimizer, is_inner=True)
        member.rows = [] if keeps_rows else None

    def choose_main(self) -> None:
        """If the main optimizer is gone and another is left, that one becomes the main one."""
        if self.main is not None and self.main.optimizer() is None:
            left = [member for member in self.members.values() if member.optimizer() is not None and not member.is_inner]
            if left:
                self.has_inner_loops = self.main.steps < _BEGINNING_STEPS
                self.main, self._holding = max(left, key=lambda member: member.size), False

    def _forget_dead(self) -> None:
        for key in [key for key, member in self.members.items() if member.optimizer() is None and member is not self.main]:
            del self.members[key]

    def leave(self, optimizer: Optimizer) -> None:
        """Let an optimizer go that turned out to belong elsewhere."""
        del self.members[id(optimizer)]
        self.changed += 1

    def expect(self, others: Iterable[Optimizer]) -> None:
        """Learn which optimizers were there when the training began: one that steps soon works beside the first.

        While one of them is larger, and so may be the main one, the rows of the first steps are held back.
        """
        others = list(others)
        self._expected = [weakref.ref(other) for other in others]
        self._holding = self.main is not None and any(Member(other).size > self.main.size for other in others)

    def main_has_stepped(self) -> None:
        """No other optimizer steps without the main one: those of its inner loops stay what they are."""
        for other in self.members.values():
            self.has_inner_loops |= other.is_inner and other.steps_alone > 0
            other.steps_alone, other.rows = 0, None

    @property
    def expects_others(self) -> bool:
        """Whether other optimizers were there when the training began."""
        return any(reference() is not None for reference in self._expected)

    def expects(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer was there when the training began, and the training is still at its beginning."""
        early = self.main is not None and self.main.steps < _BEGINNING_STEPS
        return early and any(reference() is optimizer for reference in self._expected)

    def begin_at(self, step: int) -> None:
        """Count from this step on: the training continues from there."""
        self.step = self._first = step

    def main_optimizer(self) -> Optimizer | None:
        """The main optimizer, as long as it lives."""
        return self.main.optimizer() if self.main is not None else None

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that live, without those of inner loops, the main one first."""
        members = sorted((m for m in self.members.values() if not m.is_inner), key=lambda member: member is not self.main)
        return [optimizer for member in members if isinstance(optimizer := member.optimizer(), Optimizer)]

    def is_over(self) -> bool:
        """Whether nothing is left that could continue it: no optimizer and no part of a model."""
        return not self.models.parameters() and all(member.optimizer() is None for member in list(self.members.values()))

    def roots(self) -> list[nn.Module]:
        """The models, as far as they are alive."""
        return self.models.roots()

    def trains(self, parameters: Iterable[Any]) -> bool:
        """Whether any of these parameters is trained here."""
        wanted = {id(parameter) for parameter in parameters}
        optimizers = [optimizer for member in self.members.values() if (optimizer := member.optimizer()) is not None]
        held = any(id(parameter) in wanted for optimizer in optimizers for parameter in parameters_of(optimizer))
        return held or any(id(parameter) in wanted for parameter in self.models.parameters())

    def _number_of(self, member: Member) -> int:
        """Number of an optimizer; 0 is the main one."""
        return 1 + [other for other in self.members.values() if other is not self.main].index(member)

    def _hold(self, member: Member, row: list[float | int], now: float) -> None:
        """Keep a row back, or not any longer; what it took from the loader may have to be given back."""
        self._holding = member.steps < _BEGINNING_STEPS and now - self._began_at < _BEGINNING_SECONDS
        if self.loader.epoch is not None:
            self._held = (self._held[0] + row[at.DATA_SECONDS], self._held[1] + int(row[at.SAMPLES]))
