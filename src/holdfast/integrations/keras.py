"""Keras 3 on torch: `model.fit(…, callbacks=[HoldfastCallback()])`."""

from __future__ import annotations

import glob
import re
import sys
from pathlib import Path
from typing import Any

import torch

import holdfast
from holdfast.checkpoints.clean import newest
from holdfast.errors import UsageError
from holdfast.integrations.keras_optimizer import KerasOptimizer
from holdfast.integrations.trainer_run import TrainerRun
from holdfast.state.generators import read_process_generators, set_process_generators

try:
    import keras
    from keras.callbacks import BackupAndRestore, ModelCheckpoint
except ImportError:
    raise ImportError("Holdfast's callback for Keras needs it: pip install keras") from None

_EPOCHS = "epochs"  # in the metrics of a checkpoint: how many were finished


class HoldfastCallback(keras.callbacks.Callback):  # type: ignore[misc]  # it has no types
    """Records a Keras training on torch; `options` are those of `holdfast.watch`: name, folder, policy, …

    A checkpoint of Holdfast's is saved after each epoch. The files of `ModelCheckpoint` and `BackupAndRestore` are verified and
    listed, and `heal` has the model saved beside those of a `ModelCheckpoint`.
    """

    def __init__(self, *, saves: bool = True, **options: Any) -> None:
        super().__init__()
        if keras.backend.backend() != "torch":
            raise UsageError("Keras does not compute with torch here.", fix="export KERAS_BACKEND=torch")
        self.holdfast = TrainerRun(**options)
        self._saves = saves
        self._optimizer: KerasOptimizer | None = None
        self._randomness: dict[str, Any] | None = None  # as it was restored
        self._keras: list[Any] = []  # the callbacks by which Keras saves

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
        self._keras = [callback for callback in _callbacks() if isinstance(callback, (ModelCheckpoint, BackupAndRestore))]
        self.holdfast.has_listed(*self._written())

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """An epoch begins."""
        if self._randomness is not None:  # `fit` has drawn a batch to build the model
            set_process_generators(self._randomness)
            self._randomness = None
        self.holdfast.wrote(*self._written())
        self.holdfast.epoch(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A step begins."""
        if any(callback.save_freq != "epoch" for callback in self._keras):
            self.holdfast.wrote(*self._written())
        if self._optimizer is not None:
            self._optimizer.step_begins()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keras has updated the weights."""
        self._updated()
        if self.holdfast.takes_save():
            self._save_beside(next((callback for callback in self._keras if isinstance(callback, ModelCheckpoint)), None))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """The means of the epoch, and of the evaluation after it."""
        self.holdfast.evaluated(logs or {}, epoch=epoch)
        if self._saves and self.holdfast.run is not None:
            metrics = {name: value for name, value in (logs or {}).items() if name.startswith("val_")}
            self.holdfast.run.save(metrics={**metrics, _EPOCHS: epoch + 1})

    def on_train_end(self, logs: Any = None) -> None:
        """`fit` is over."""
        self.holdfast.wrote(*self._written())
        if self.holdfast.run is not None:
            self.holdfast.run.updates(None)
        self.holdfast.end()

    def _save_beside(self, own: ModelCheckpoint | None) -> None:
        """Save as a `ModelCheckpoint` of the script does, if there is one."""
        if own is not None:
            folder = Path(own.filepath.partition("{")[0] + "_").parent
            weights = (".weights.h5", self.model.save_weights) if own.save_weights_only else None
            self.holdfast.save(folder, *(weights or (Path(own.filepath).suffix, self.model.save)))

    def _written(self) -> list[str]:
        """What Keras has saved; "out/{epoch:02d}.keras" are the files of every epoch."""
        names = [
            callback.filepath if isinstance(callback, ModelCheckpoint) else f"{callback.backup_dir}/{{}}.h5"
            for callback in self._keras
        ]
        patterns = ["*".join(map(glob.escape, re.split(r"\{.*?\}", name))) for name in names]
        return [path for pattern in patterns for path in glob.iglob(pattern)]  # noqa: PTH207 - Path.glob takes no absolute one


def newest_checkpoint(folder: str | Path) -> str | None:
    """The newest `.keras` or `.weights.h5` below a folder that is whole and finite, to load; None if there is none."""
    return newest(path for kind in ("*.keras", "*.weights.h5") for path in Path(folder).rglob(kind))


def _callbacks() -> list[Any]:
    """All callbacks of the `fit` that is calling: Keras does not tell one of the others."""
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        if isinstance(owner := caller.f_locals.get("self"), keras.callbacks.CallbackList):
            return list(owner.callbacks)
        frame = caller
    return []
