"""Keras 3 on torch: `model.fit(…, callbacks=[HoldfastCallback()])`.

Keras updates weights with optimizers of its own. `KerasOptimizer` stands in for one, so that its updates are recorded, checked
and repaired like those of `torch.optim`, and `run.save()` holds its state.
"""

from __future__ import annotations

from typing import Any

import torch

import holdfast
from holdfast.errors import UsageError
from holdfast.integrations.trainer_run import TrainerRun
from holdfast.state.generators import read_process_generators, set_process_generators

try:
    import keras
except ImportError:
    raise ImportError("Holdfast's callback for Keras needs it: pip install keras") from None

_EPOCHS = "epochs"  # in the metrics of a checkpoint: how many were finished


class HoldfastCallback(keras.callbacks.Callback):  # type: ignore[misc]  # it has no types
    """Records a Keras training on torch; `options` are those of `holdfast.watch`: name, folder, policy, …

    A checkpoint of Holdfast's is saved after each epoch; Keras' own files are not read by Holdfast.
    """

    def __init__(self, *, saves: bool = True, **options: Any) -> None:
        super().__init__()
        if keras.backend.backend() != "torch":
            raise UsageError("Keras does not compute with torch here.", fix="export KERAS_BACKEND=torch")
        self.holdfast = TrainerRun(**options)
        self._saves = saves
        self._optimizer: KerasOptimizer | None = None
        self._randomness: dict[str, Any] | None = None  # as it was restored

    def resume(self, model: Any) -> int:
        """Restore the newest clean checkpoint of this run's name into a compiled model; returns the epoch to begin with.

        `model.fit(…, initial_epoch=callback.resume(model), callbacks=[callback])`
        """
        restored = self._begin(model).restore()
        if restored is None:
            return 0
        self._randomness = read_process_generators(range(torch.cuda.device_count()))
        return int(restored.metrics.get(_EPOCHS, restored.epoch or 0))

    def _begin(self, model: Any) -> holdfast.Run:
        if self._optimizer is None or not self._optimizer.belongs_to(model):
            self._optimizer = KerasOptimizer(model)
        run = self.holdfast.begin(model, self._optimizer, stop=lambda: setattr(model, "stop_training", True))
        self._optimizer.keeps_statistics = run.policy != "observe"
        return run

    def on_train_begin(self, logs: Any = None) -> None:
        """`fit` begins."""
        self._updated = self._begin(self.model).updates(self._optimizer)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """An epoch begins."""
        if self._randomness is not None:  # `fit` has drawn a batch to build the model
            set_process_generators(self._randomness)
            self._randomness = None
        if self.holdfast.run is not None:
            self.holdfast.run.epoch(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A step begins."""
        if self._optimizer is not None:
            self._optimizer.step_begins()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keras has updated the weights."""
        self._updated()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """The means of the epoch, and of the evaluation after it."""
        self.holdfast.evaluated(logs or {}, epoch=epoch)
        if self._saves and self.holdfast.run is not None:
            metrics = {name: value for name, value in (logs or {}).items() if name.startswith("val_")}
            self.holdfast.run.save(metrics={**metrics, _EPOCHS: epoch + 1})

    def on_train_end(self, logs: Any = None) -> None:
        """`fit` is over."""
        if self.holdfast.run is not None:
            self.holdfast.run.updates(None)
        self.holdfast.end()


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
