"""Ultralytics: `add_callbacks(model)` before `model.train(…)`. To resume: `YOLO(newest_checkpoint(folder)).train(resume=True)`.

Ultralytics has the licence AGPL-3.0. Nothing here imports it: its callbacks get its trainer.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoints.clean import newest
from holdfast.errors import CannotRestore
from holdfast.integrations.trainer_run import TrainerRun
from holdfast.state.store import CheckpointStore, is_clean

_STEPS_BACK, _MOST_EPOCHS = 64, 9


def add_callbacks(model: Any, **options: Any) -> HoldfastCallbacks:
    """Have a model of Ultralytics (`YOLO(…)`) recorded; `options` are those of `holdfast.watch`: name, folder, policy, …"""
    callbacks = HoldfastCallbacks(**options)
    for event in EVENTS:
        model.add_callback(event, getattr(callbacks, event))
    return callbacks


class HoldfastCallbacks:
    """The callbacks, named as Ultralytics names its events."""

    def __init__(self, **options: Any) -> None:
        self.holdfast = TrainerRun(**options)
        self._has_trained = False  # since the last evaluation
        self._saves = True  # every epoch, as the script said
        self.states: CheckpointStore | None = None  # under `heal`: what Ultralytics' own checkpoint leaves out

    def on_train_start(self, trainer: Any) -> None:
        """Model and optimizer exist, and are restored."""
        self.holdfast.has_listed(*trainer.wdir.glob("*.pt"))
        run = self.holdfast.begin(trainer.model, trainer.optimizer, stop=lambda: setattr(trainer, "stop", True))
        if trainer.ema is not None:
            run.ema(trainer.ema.ema)
            if trainer.start_epoch > 0:
                self.holdfast.resumed(trainer.last, trainer.ema.updates)
            if run.policy == "heal":
                self.states = self._whole_states(trainer)

    def on_train_epoch_start(self, trainer: Any) -> None:
        """An epoch begins."""
        self.holdfast.epoch(trainer.epoch)

    def on_train_epoch_end(self, trainer: Any) -> None:
        """Ultralytics resumes after whole epochs only: what `heal` wants saved is saved at the end of one."""
        if self.states is not None and hasattr(loader := trainer.train_loader, "generator"):
            loader.generator = getattr(loader.sampler, "generator", loader.generator)  # two since a resume
        self._has_trained, self._saves = True, trainer.args.save
        trainer.args.save |= self.holdfast.takes_save()

    def on_fit_epoch_end(self, trainer: Any) -> None:
        """An evaluation is over; the one of the best weights after the last epoch is not a new one."""
        if self._has_trained:
            self._has_trained = False
            self.holdfast.evaluated(trainer.metrics, epoch=trainer.epoch, split="val")

    def on_model_save(self, trainer: Any) -> None:
        """Checkpoints are written."""
        trainer.args.save = self._saves
        self.holdfast.wrote(*trainer.wdir.glob("*.pt"))
        if self.states is not None:
            self.states.save(self.holdfast.num_steps, epoch=trainer.epoch + 1, **_parts(trainer))
            _copy_last(trainer, self.states.folder)

    def on_train_end(self, trainer: Any) -> None:
        """The training is over, and its files are written again without what only a resume needs."""
        self.holdfast.wrote(*trainer.wdir.glob("*.pt"))
        if self.states is not None:
            self.states.close()
            shutil.rmtree(self.states.folder, ignore_errors=True)
        self.holdfast.end()

    def _whole_states(self, trainer: Any) -> CheckpointStore:
        """The store beside Ultralytics' checkpoints; the state of the epoch that is resumed from is restored.

        Ultralytics itself continues from averaged weights in half precision, with the data in the order of the first epoch.
        """
        folder = trainer.wdir / "state"
        if trainer.start_epoch == 0:
            shutil.rmtree(folder, ignore_errors=True)  # of an earlier training
        states = CheckpointStore(folder, keep_last=_epochs_kept(trainer), every_epochs=None)
        for kept in states.list():
            if (kept.epoch or 0) > trainer.start_epoch:  # of a course that was given up
                shutil.rmtree(kept.path, ignore_errors=True)
        of_epoch = (kept.path for kept in states.list() if kept.manifest.get("epoch") == trainer.start_epoch)
        if (path := next(filter(is_clean, of_epoch), None)) is not None:
            try:
                states.restore(at=path, **_parts(trainer))
            except CannotRestore as error:  # nothing was changed: the training continues as Ultralytics resumes it
                warnings.warn(f"holdfast: {error.problem}", stacklevel=2)
        return states


class _DataOrder:
    """The generator that shuffles the training data. The loader's new iterator draws a seed of its own, from another one."""

    def __init__(self, loader: Any) -> None:
        self._sampler, self._batch_size = loader.sampler, loader.batch_size

    def state_dict(self) -> dict[str, Any]:
        return {"generator": generator.get_state() if (generator := getattr(self._sampler, "generator", None)) else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["generator"] is not None:
            self._sampler.generator = torch.Generator()
            self._sampler.generator.set_state(state["generator"])
            if len(self._sampler) % self._batch_size == 0:  # torch's sampler ends a pass with a draw that is not made yet then
                torch.randperm(len(self._sampler), generator=self._sampler.generator)


def _epochs_kept(trainer: Any) -> int:
    """How many epochs can be gone back: those of the last steps, for trouble is seen some steps after it began."""
    return min(_MOST_EPOCHS, 1 + math.ceil(_STEPS_BACK / len(trainer.train_loader)))


def _copy_last(trainer: Any, folder: Path) -> None:
    """Ultralytics overwrites its last checkpoint: a copy for each epoch whose state is kept. Without room, there is none."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"epoch-{trainer.epoch + 1 - _epochs_kept(trainer)}.pt").unlink(missing_ok=True)
        shutil.copyfile(trainer.last, folder / f"epoch-{trainer.epoch + 1}.pt")


def _parts(trainer: Any) -> dict[str, Any]:
    loader = _DataOrder(trainer.train_loader)
    return {"model": trainer.model, "optimizer": trainer.optimizer, "ema": trainer.ema.ema, "loader": loader}


EVENTS = tuple(name for name in vars(HoldfastCallbacks) if name.startswith("on_"))


def newest_checkpoint(folder: str | Path) -> str | None:
    """The newest `.pt` in a folder of weights that is whole and finite, to resume from; None if there is none."""
    return newest(Path(folder).glob("*.pt"))
