"""Averaged copies of a model (EMA): a skipped update must not move them either.

For torch's own `AveragedModel` the call is skipped. Any other copy that the script registered with `run.ema(copy)` is restored
before the next update.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from holdfast.inside.gradients.non_finite import tensors_in


class Averages:
    """The averaged copies that were registered for a training."""

    def __init__(self, copies: Iterable[Any] = ()) -> None:
        self._copies = [weakref.ref(copy) for copy in copies]
        self._saved: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.has_saved = False

    def __bool__(self) -> bool:
        return bool(self._copies)

    def add(self, copy: Any) -> None:
        """Register a copy."""
        self._copies.append(weakref.ref(copy))

    def alive(self) -> list[Any]:
        """The copies that still exist."""
        return [copy for reference in self._copies if (copy := reference()) is not None]

    def save(self) -> None:
        """Save the copies: an update was skipped, and the script is about to average over it."""
        states = [copy if isinstance(copy, nn.Module) else copy.state_dict() for copy in self.alive()]
        self._saved = [(tensor, tensor.detach().clone()) for state in states for _, tensor in tensors_in(state)]
        self.has_saved = bool(self._saved)

    def restore(self) -> None:
        """Restore what was saved, before the next update."""
        with torch.no_grad():
            for tensor, value in self._saved:
                tensor.copy_(value)
        self._saved.clear()
        self.has_saved = False
