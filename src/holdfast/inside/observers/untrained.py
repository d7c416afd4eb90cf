"""Parameters that the update does not reach: frozen, without a gradient, or held by no optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

FROZEN, NO_GRADIENT, NO_OPTIMIZER, TRAINED = "frozen", "no-gradient", "no-optimizer", "trained"


class Change(NamedTuple):
    """A parameter by the code of its name, why it is not trained, and its place among all `of` them."""

    name: int
    why: str
    position: int
    of: int


class Untrained:
    """Remembers what was said of each parameter: only what has changed is said again."""

    def __init__(self) -> None:
        self._said: dict[int, str] = {}

    def changes(
        self,
        known: Mapping[int, weakref.ref[torch.Tensor]],
        names: Mapping[int, int],
        *,
        main: Iterable[torch.Tensor],
        others: Iterable[torch.Tensor],
    ) -> list[Change]:
        """Why parameters are not trained, or that they are now, where that is not what was said before.

        `known` are all parameters by their id, `names` the codes of their names in the order of the model. `main` are those
        of the main optimizer, whose step comes next; what only the `others` hold is theirs, and has no gradient between
        their steps.
        """
        held, theirs = {id(parameter) for parameter in main}, {id(parameter) for parameter in others}
        found = []
        for position, (number, name) in enumerate(names.items()):
            parameter = reference() if (reference := known.get(number)) is not None else None
            if parameter is None or (number in theirs and number not in held):
                continue
            why = _why(parameter, held=number in held)
            if self._said.get(number, TRAINED) != why:
                self._said[number] = why
                found.append(Change(name, why, position, len(names)))
        return found


def _why(parameter: torch.Tensor, *, held: bool) -> str:
    if not parameter.requires_grad:
        return FROZEN
    if not held:
        return NO_OPTIMIZER
    return NO_GRADIENT if parameter.grad is None else TRAINED
