"""One planned fault in one process: whether it is due, and that it happens once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.drills.fault import Fault, hooks_of
from holdfast.drills.injection.context import FaultContext
from holdfast.drills.injection.notes import Notes
from holdfast.drills.plan import Planned
from holdfast.errors import CannotHappen, NotHere


class Live:
    """A fault and its mark; a mark of an earlier process of this run counts too."""

    def __init__(self, fault: Fault, planned: Planned, number: int, notes: Notes, rank: int = 0) -> None:
        self.fault, self.places = fault, hooks_of(fault)
        self._planned, self._number, self._notes = planned, number, notes
        self._mark = f"injected-{number}-{rank}" if fault.on_every_rank and rank else f"injected-{number}"
        self._over = False
        self._met_before = notes.marked(self._mark)
        self._step = 0 if fault.from_start or self._met_before else planned.step

    def due(self, step: int) -> bool:
        """Whether it should happen at a step, or a later one if its place was not passed in time."""
        if self._over or step < self._step:
            return False
        return self.fault.lasting or not self._met_before

    def happen(self, context: FaultContext, place: Callable[..., Any], *arguments: Any, otherwise: Any = None) -> Any:
        """Let it happen. It is noted before: nothing may come back from there."""
        first = self._notes.mark(self._mark)
        if not first and not self.fault.lasting:
            self._over = True
            return otherwise
        if first:
            self._notes.write("injected", fault=self.fault.code, number=self._number, step=context.step, rank=context.rank)
        self._over = not self.fault.lasting
        context.withdraw = self._withdraw
        try:
            return place(*arguments)
        except NotHere as why:
            self._over = False
            if first:
                self._notes.unmark(self._mark)
                self._notes.write("not-here", fault=self.fault.code, number=self._number, why=str(why))
            return otherwise
        except CannotHappen as why:
            self._over = True
            self._withdraw(str(why))
            return otherwise

    def _withdraw(self, why: str) -> None:
        self._notes.write("cannot-happen", fault=self.fault.code, number=self._number, why=why)
