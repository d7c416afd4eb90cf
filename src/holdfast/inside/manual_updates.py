"""Detect trainings without a `torch.optim.Optimizer`: updates by hand, Keras on torch, other optimizer classes.

After several backward passes without an optimizer step the values of tensors with gradients are compared. If they have changed,
the script updates them itself, and from then on each backward pass counts as a step. Keras and fastai have optimizers of their
own: where one of them is imported, its optimizer is searched for at the first backward pass, and tells the learning rate. An
optimizer that dill has loaded has a copy of torch's class, which no hook of torch's reaches.
"""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import torch
from torch import nn

from holdfast.state.parameters import parameters_of

FIRST_LOOK, LOOK_AFTER_STEPS = 8, 1024  # backward passes without an optimizer step before a search; then at every doubling
PACKAGES = ("keras", "fastai")  # with optimizers of their own
_COPIES_CLASSES = "dill"
_MAX_TENSORS, _MAX_VALUES = 8, 1024  # compared


class ManualUpdates:
    """Stands in for an optimizer: the parameters that a script updates itself, held weakly."""

    def __init__(self, parameters: list[torch.Tensor], optimizer: Any = None) -> None:
        self._parameters = [weakref.ref(parameter) for parameter in parameters]
        self._optimizer = weakref.ref(optimizer) if optimizer is not None else None  # not of torch

    @property
    def state(self) -> dict[Any, Any]:
        """What the optimizer keeps for each parameter, if it does as torch's do."""
        state = getattr(self._optimizer(), "state", None) if self._optimizer is not None else None
        return state if isinstance(state, dict) else {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group; the learning rate of a script that updates by hand is not known."""
        group: dict[str, Any] = {"params": [alive for reference in self._parameters if (alive := reference()) is not None]}
        if self._optimizer is not None and (optimizer := self._optimizer()) is not None:
            group["lr"] = _learning_rate(optimizer)
        return [group]


class Search:
    """Searches for tensors that are updated without an optimizer, in one thread."""

    def __init__(self) -> None:
        self._values: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []

    def look(self) -> ManualUpdates | None:
        """Return the updated tensors, if they have an optimizer that is not torch's, or values have changed since the last."""
        changed = any(
            (tensor := reference()) is not None and not torch.equal(_sample(tensor), last) for reference, last in self._values
        )
        parameters = _tensors_with_gradient()
        self._values = [(weakref.ref(tensor), _sample(tensor).clone()) for tensor in parameters[:_MAX_TENSORS]]
        optimizer = _other_optimizer(parameters)
        return ManualUpdates(parameters, optimizer) if parameters and (changed or optimizer is not None) else None


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)[:_MAX_VALUES]


def _tensors_with_gradient() -> list[torch.Tensor]:
    """All plain leaf tensors with a gradient. Searches every object, so it runs only without an optimizer, a few times."""
    tensors = [value for value in gc.get_objects() if type(value) in (torch.Tensor, nn.Parameter)]
    return [t for t in tensors if t.is_leaf and t.requires_grad and t.grad is not None and t.numel()]


def _other_optimizer(parameters: list[torch.Tensor]) -> Any:
    """The optimizer of Keras or fastai, or the copy of one of torch's, that updates some of these, if none of torch's does."""
    updated, optimizer = {id(parameter) for parameter in parameters}, None
    for obj in gc.get_objects() if not sys.modules.keys().isdisjoint((*PACKAGES, _COPIES_CLASSES)) else ():
        module = str(type(obj).__module__)
        package = module.partition(".")[0]
        if package in PACKAGES and hasattr(type(obj), "apply_gradients"):
            owned = [variable.value for variable in getattr(obj, "_trainable_variables", ())]
        elif (
            issubclass(type(obj), torch.optim.Optimizer)  # not of the object: some of torch's warn whoever asks them
            or (package in PACKAGES and hasattr(type(obj), "param_groups"))
            or (module.startswith("torch.optim.") and "param_groups" in getattr(obj, "__dict__", ()))
        ):
            owned = parameters_of(obj)
        else:
            continue
        if any(id(parameter) in updated for parameter in owned):
            if issubclass(type(obj), torch.optim.Optimizer):
                return None
            optimizer = obj
    return optimizer


def _learning_rate(optimizer: Any) -> Any:
    rate = optimizer.learning_rate if hasattr(optimizer, "learning_rate") else optimizer.param_groups[-1]["lr"]
    return getattr(rate, "value", rate)
