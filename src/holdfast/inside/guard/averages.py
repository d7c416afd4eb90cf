"""Averaged copies of a model (EMA): after an update that was left out, they must not move either.

torch's own `AveragedModel` is simply not called. A copy of another kind, which the script registered with `run.ema(copy)`,
is put back before the next update.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


class Averages:
    """The averaged copies that were registered for a training."""

    def __init__(self, copies: Iterable[Any] = ()) -> None:
        self._copies = [weakref.ref(copy) for copy in copies]
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __bool__(self) -> bool:
        return bool(self._copies)

    def add(self, copy: Any) -> None:
        """Register one more."""
        self._copies.append(weakref.ref(copy))

    def hold(self) -> None:
        """An update was left out, and the script is about to average over it: keep them as they are."""
        tensors = [tensor for copy in self.living() for tensor in _tensors_of(copy)]
        self._kept = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def let_go(self) -> None:
        """Put back what was held, before the next update."""
        if not self._kept:
            return
        with torch.no_grad():
            for tensor, value in self._kept:
                tensor.copy_(value)
        self._kept.clear()

    def living(self) -> list[Any]:
        """The copies that are still there."""
        return [copy for reference in self._copies if (copy := reference()) is not None]


def _tensors_of(copy: Any) -> list[torch.Tensor]:
    """The numbers of a copy: a module's, or those that its state holds."""
    if isinstance(copy, nn.Module):
        return [*copy.parameters(), *copy.buffers()]
    waiting, found = [copy.state_dict()], list[torch.Tensor]()
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, torch.Tensor):
            found.append(thing)
        elif isinstance(thing, (dict, list, tuple)):
            waiting.extend(thing.values() if isinstance(thing, dict) else thing)
    return found
