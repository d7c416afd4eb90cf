"""Trainings without a `torch.optim.Optimizer`: updates by hand, Keras on torch, optimizers of other kinds.

They are seen by their backward passes. When many have come without an optimizer's step, and the values of tensors that they
gave gradients to have changed in between, someone updates them: from then on each backward pass is a step.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import nn

FIRST_LOOK, LOOK_AFTER_STEPS = 8, 1024  # backward passes without an optimizer's step; then at every doubling
_TENSORS, _VALUES = 8, 1024  # whose values are compared


class ManualUpdates:
    """In the place of an optimizer: the parameters that a script updates itself. Does not keep them alive."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._parameters = [weakref.ref(parameter) for parameter in parameters]
        self.state: dict[Any, Any] = {}
        self.is_under_way = False  # its gradients are there, and the update comes before the next backward pass

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group; its learning rate is known to the script alone."""
        return [{"params": [parameter for reference in self._parameters if (parameter := reference()) is not None]}]


class Search:
    """Looks for tensors that are updated without an optimizer, in one thread."""

    def __init__(self) -> None:
        self._values: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []

    def look(self) -> ManualUpdates | None:
        """What is updated without an optimizer, once that is certain: values have changed since the last look."""
        changed = any(
            (tensor := reference()) is not None and not torch.equal(_some(tensor), was) for reference, was in self._values
        )
        parameters = _with_gradients()
        self._values = [(weakref.ref(tensor), _some(tensor).clone()) for tensor in parameters[:_TENSORS]]
        return ManualUpdates(parameters) if changed and parameters else None


def _some(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)[:_VALUES]


def _with_gradients() -> list[torch.Tensor]:
    """All plain tensors that have got a gradient. Asked a few times in a training without an optimizer, else never."""
    kinds = (torch.Tensor, nn.Parameter)
    plain = [thing for thing in gc.get_objects() if type(thing) in kinds]
    return [tensor for tensor in plain if tensor.is_leaf and tensor.requires_grad and tensor.grad is not None and tensor.numel()]
