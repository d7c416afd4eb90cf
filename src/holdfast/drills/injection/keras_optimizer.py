"""Keras 3 on torch: its optimizers are not torch's. What faults need of one, and where its updates are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NoReturn

import torch

from holdfast.errors import CannotHappen

MODULE = "keras.src.optimizers.base_optimizer"


class KerasOptimizer:
    """A Keras optimizer with the groups of a torch optimizer: one, with its parameters and its learning rate."""

    def __init__(self, optimizer: Any, parameters: Iterable[torch.Tensor]) -> None:
        self.param_groups = [_Group(optimizer, parameters)]

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CannotHappen(f"an optimizer of Keras has no {name}")


class _Group(dict[str, Any]):
    """The learning rate is read from the optimizer and written to it, everything else is a plain entry."""

    def __init__(self, optimizer: Any, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(params=list(parameters), lr=None)
        self._optimizer = optimizer

    def __getitem__(self, name: str) -> Any:
        return float(self._optimizer.learning_rate) if name == "lr" else super().__getitem__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name != "lr":
            super().__setitem__(name, value)
            return
        try:
            self._optimizer.learning_rate = value
        except TypeError:  # it says so where a schedule computes it
            raise CannotHappen("a schedule of Keras computes the learning rate at every update") from None


def tell_updates(module: ModuleType, replace: Callable[..., None], updated: Callable[[KerasOptimizer], None]) -> None:
    """Have `updated` called after each update by an optimizer of Keras whose variables are torch's."""
    seen: dict[int, tuple[Any, KerasOptimizer]] = {}  # with the optimizer: its number must stay its own

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            result = original(optimizer, grads, trainable_variables)
            if id(optimizer) not in seen:
                values = [getattr(variable, "value", None) for variable in trainable_variables or optimizer._trainable_variables]
                tensors = [value for value in values if isinstance(value, torch.Tensor)]
                seen[id(optimizer)] = optimizer, KerasOptimizer(optimizer, tensors)
            if seen[id(optimizer)][1].param_groups[0]["params"]:
                updated(seen[id(optimizer)][1])
            return result

        return apply

    replace(module.BaseOptimizer, "apply", make)
