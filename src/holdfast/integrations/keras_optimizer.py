"""Stands in for an optimizer of Keras, so that its updates are recorded, checked and repaired like those of `torch.optim`."""

from __future__ import annotations

from typing import Any

import torch


class KerasOptimizer(torch.optim.Optimizer):
    """Stands in for the optimizer of a compiled Keras model: the same parameters, learning rate and state, by reference."""

    def __init__(self, model: Any) -> None:
        self._model, self._keras = model, model.optimizer
        if not self._keras.built:
            self._keras.build(model.trainable_variables)
        super().__init__([variable.value for variable in model.trainable_variables], {"lr": 0.0})
        self.keeps_statistics = False
        self._statistics: list[tuple[torch.Tensor, torch.Tensor]] = []  # before the step, of BatchNorm and the like
        rate = self._keras.learning_rate
        self._schedule = None if hasattr(rate, "value") else self._keras._learning_rate
        group = self.param_groups[0]
        if self._schedule is None:
            group["lr"] = rate.value  # changed in place, by Keras and by Holdfast
        else:
            self.param_groups[0] = _ScheduledGroup(group, self._keras, self._schedule)
        slots = {str(number): variable.value for number, variable in enumerate(self._keras.variables)}
        self.state[group["params"][0]] = slots

    def belongs_to(self, model: Any) -> bool:
        """Whether it stands in for the optimizer of this model."""
        return self._model is model and self._keras is model.optimizer

    def step_begins(self) -> None:
        """The forward pass comes next."""
        if self._schedule is not None:
            dict.__setitem__(self.param_groups[0], "lr", float(self._keras.learning_rate))
        if self.keeps_statistics:
            values = [variable.value for variable in self._model.non_trainable_variables]
            self._statistics = [(value, value.detach().clone()) for value in values if value.is_floating_point()]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Keras makes the updates."""

    def skip_update(self) -> UndoneUpdate:
        """Have the update that Keras is about to make undone after it."""
        parameters = self.param_groups[0]["params"]
        changing = [*parameters, *self.state[parameters[0]].values()]
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        return UndoneUpdate([*self._statistics, *((tensor, tensor.detach().clone()) for tensor in changing)])


class UndoneUpdate:
    """An update that is undone: Keras refuses to update without gradients, and momentum would move weights even if they are 0."""

    def __init__(self, values: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._values = values

    def give_back(self) -> None:
        """Undo it."""
        with torch.no_grad():
            for tensor, value in self._values:
                tensor.copy_(value)


class _ScheduledGroup(dict[str, Any]):
    """A parameter group whose learning rate follows a schedule of Keras; another one is in force until it is set back."""

    def __init__(self, group: dict[str, Any], optimizer: Any, schedule: Any) -> None:
        super().__init__(group)
        self._optimizer, self._schedule = optimizer, schedule

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "lr":
            rate = float(value)
            self._optimizer.learning_rate = self._schedule
            if rate != float(self._optimizer.learning_rate):
                self._optimizer.learning_rate = lambda: rate
        super().__setitem__(name, value)
