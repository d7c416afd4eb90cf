"""The loaders of a run and the place in each of them; a loader is known again by itself, or by its likeness once it is gone.

After a restart loaders are told apart by the order in which they were first drawn from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from holdfast.inside.saving.generators import Plain
from holdfast.inside.saving.going_past import describe
from holdfast.inside.saving.position import Position

_HELD_BY_US = 2  # references to a thing that only a position holds: its own, and that of who counts


class Positions:
    """One position for each loader that `run.batches` was given."""

    def __init__(self, *, say: Callable[[str], None], heard: Callable[[Any, float], object], ended: Callable[[], object]) -> None:
        self._say, self._heard, self._ended = say, heard, ended
        self._known: list[Position[Any]] = []
        self._waiting: list[Plain] = []

    def of(self, loader: Any, *, fast: bool, timed: bool) -> Position[Any]:
        """The place in a loader. Raises CannotRestore if it goes on in the middle of a pass over another one."""
        position = next((known for known in self._known if known.loader is loader), None)
        if position is None:
            position = next((known for known in self._known if _is_gone(known) and known.like == describe(loader)), None)
            if position is not None:
                position.loader = loader
        if position is None:
            heard, ended = (self._heard, self._ended) if timed else (None, None)
            position = Position(loader, keep=False, say=self._say, heard=heard, ended=ended)
            number = len(self._known)
            if number < len(self._waiting):
                position.load_state_dict(self._waiting[number])
            self._known.append(position)
        position.fast = fast
        return position

    @property
    def passes(self) -> int | None:
        """Passes over the first loader that are over; None if there is none."""
        if self._known:
            return self._known[0].passes
        return int(self._waiting[0]["passes"]) if self._waiting else None

    def state_dict(self) -> Plain:
        """The places, in plain containers and tensors; of loaders that were not drawn from yet, what was loaded."""
        known = [position.state_dict() for position in self._known]
        return {"loaders": [*known, *self._waiting[len(known) :]]}

    def load_state_dict(self, state: Plain) -> None:
        """Go on from there with the next pass over each."""
        self._waiting = list(state["loaders"])
        for position, saved in zip(self._known, self._waiting, strict=False):
            position.load_state_dict(saved)


def _is_gone(position: Position[Any]) -> bool:
    """Whether the script holds the loader no more: another like it takes its place."""
    held_by_us_alone = position.holds_it and sys.getrefcount(position.loader) <= _HELD_BY_US
    return not position.is_open and (position.loader is None or held_by_us_alone)
