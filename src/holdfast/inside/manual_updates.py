"""Detect trainings without a `torch.optim.Optimizer`: updates by hand, Keras on torch, other optimizer classes.

After several backward passes without an optimizer step the values of tensors with gradients are compared. If they have changed,
the script updates them itself, and from then on each backward pass counts as a step. Where Keras is imported, that is looked for
from the first step on, and the learning rate is that of the Keras optimizer.
"""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import torch
from torch import nn

FIRST_LOOK, LOOK_AFTER_STEPS = 8, 1024  # backward passes without an optimizer step before a search; then at every doubling
_MAX_TENSORS, _MAX_VALUES = 8, 1024  # compared


class ManualUpdates:
    """Stands in for an optimizer: the parameters that a script updates itself, held weakly."""

    def __init__(self, parameters: list[torch.Tensor], keras_optimizer: Any = None) -> None:
        self._parameters = [weakref.ref(parameter) for parameter in parameters]
        self._keras = weakref.ref(keras_optimizer) if keras_optimizer is not None else None
        self.state: dict[Any, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group; the learning rate of a script that updates by hand is not known."""
        group: dict[str, Any] = {"params": [one for reference in self._parameters if (one := reference()) is not None]}
        if self._keras is not None and (optimizer := self._keras()) is not None:
            rate = optimizer.learning_rate
            group["lr"] = getattr(rate, "value", rate)
        return [group]


class Search:
    """Searches for tensors that are updated without an optimizer, in one thread."""

    def __init__(self) -> None:
        self._values: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []

    def look(self) -> ManualUpdates | None:
        """Return the updated tensors, if values have changed since the last search."""
        changed = any(
            (tensor := reference()) is not None and not torch.equal(_sample(tensor), last) for reference, last in self._values
        )
        parameters = _tensors_with_gradient()
        self._values = [(weakref.ref(tensor), _sample(tensor).clone()) for tensor in parameters[:_MAX_TENSORS]]
        return ManualUpdates(parameters, _keras_optimizer(parameters)) if changed and parameters else None


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)[:_MAX_VALUES]


def _tensors_with_gradient() -> list[torch.Tensor]:
    """All plain leaf tensors with a gradient. Searches every object, so it runs only without an optimizer, a few times."""
    tensors = [value for value in gc.get_objects() if type(value) in (torch.Tensor, nn.Parameter)]
    return [t for t in tensors if t.is_leaf and t.requires_grad and t.grad is not None and t.numel()]


def _keras_optimizer(parameters: list[torch.Tensor]) -> Any:
    """The optimizer of Keras that updates some of these, if there is one."""
    if "keras" not in sys.modules:
        return None
    updated = {id(parameter) for parameter in parameters}
    for obj in gc.get_objects():
        is_optimizer = str(type(obj).__module__).startswith("keras.") and hasattr(type(obj), "apply_gradients")
        variables = getattr(obj, "_trainable_variables", ()) if is_optimizer else ()
        if any(id(getattr(variable, "value", None)) in updated for variable in variables):
            return obj
    return None
