"""The optimizers of one training: which of them is the main one, whose steps are its rows.

Part of a training, and not an object beside it: every step asks for these attributes.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterable

import torch
from torch import nn

from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.inside.models import Models
from holdfast.inside.observers import step_columns as at
from holdfast.inside.observers.loader import Loader
from holdfast.inside.observers.modules import ModuleTime
from holdfast.inside.optimizer_member import Member, parameters_of

_BEGINNING_STEPS, _BEGINNING_SECONDS = 16, 30.0  # in which a second optimizer may show that it works beside the first
Optimizer = torch.optim.Optimizer


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
        self.names_of, self._trained = models.names_of, models.trained  # at hand: they are used in a step
        self._unwritten: deque[tuple[list[float | int], StepMetrics, list[ModuleTime] | None]] = deque()
        self._began_at = time.perf_counter()
        self._expected: list[weakref.ref[Optimizer]] = []
        self._holding, self._beginning = False, 0
        self._held = (0.0, 0)  # seconds waited and samples drawn in the steps that are held back

    def join(self, optimizer: Optimizer) -> Member:
        """Take an optimizer in. The largest is the main one, as long as no row was written of another's steps."""
        self._forget_dead()
        member = self.members[id(optimizer)] = Member(optimizer)
        self.changed += 1
        self.models.add(parameters_of(optimizer))
        main = self.main
        if main is None or main.optimizer() is None:
            self.main = member
        elif self._holding and member.size > main.size:
            self.main, self.step, self._holding = member, self._first, False
            self._unwritten.clear()
            self._beginning += 1
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

    @property
    def expects_others(self) -> bool:
        """Whether other optimizers were there when the training began."""
        return any(reference() is not None for reference in self._expected)

    def expects(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer was there when the training began, and the training is still at its beginning."""
        early = self.main is not None and self.main.steps < _BEGINNING_STEPS
        return early and any(reference() is optimizer for reference in self._expected)

    def begin_at(self, step: int) -> None:
        """Count from this step on: the training goes on from there."""
        self.step = self._first = step

    def main_optimizer(self) -> Optimizer | None:
        """The main optimizer, as long as it lives."""
        return self.main.optimizer() if self.main is not None else None

    def is_over(self) -> bool:
        """Whether nothing is left that could go on with it: no optimizer, no model, none of their parameters."""
        optimizers = any(member.optimizer() is not None for member in list(self.members.values()))
        return not (optimizers or self.roots() or any(reference() is not None for reference in list(self._trained.values())))

    def roots(self) -> list[nn.Module]:
        """The models, as far as they are alive."""
        return self.models.roots()

    def trains(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether any of these parameters is trained here."""
        known = self._trained  # by reference: a dead parameter's id is soon another one's
        return any((found := known.get(id(parameter))) is not None and found() is parameter for parameter in parameters)

    def _number_of(self, member: Member) -> int:
        """Number of an optimizer; 0 is the main one."""
        return 1 + [other for other in self.members.values() if other is not self.main].index(member)

    def _hold(self, member: Member, row: list[float | int], now: float) -> None:
        """Keep a row back, or not any longer; what it took from the loader may have to be given back."""
        self._holding = member.steps < _BEGINNING_STEPS and now - self._began_at < _BEGINNING_SECONDS
        if self.loader.epoch is not None:
            self._held = (self._held[0] + row[at.DATA_SECONDS], self._held[1] + int(row[at.SAMPLES]))
