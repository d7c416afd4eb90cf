"""The state of the training that is recorded, and its checkpoints: `run.save()` and `run.restore()`."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from holdfast.checkpoints.manifest import MANIFEST
from holdfast.errors import CannotRestore, UsageError
from holdfast.inside.control.restarted import restarted
from holdfast.inside.discovery import find_live_objects, find_roots
from holdfast.inside.guard.averages import Averages
from holdfast.inside.training import Training
from holdfast.state.checkpoint_parts import SavedState
from holdfast.state.parameters import Optimizer, optimizer_parameters
from holdfast.state.position import Positions
from holdfast.state.ranks import RankNotes
from holdfast.state.restore import Restored, locate, newest_of_run, restore
from holdfast.state.store import CheckpointStore
from holdfast.state.training_state import TrainingState

if TYPE_CHECKING:
    from holdfast.inside.process import Process
    from holdfast.inside.scope import Scope

Named = Callable[[], tuple[list[nn.Module], list[Optimizer]]]


class RecordedState:
    """The state of a training that is recorded: discovered once, and again when something has joined or gone.

    With `whole` large frozen parameters are included, as for a checkpoint; a snapshot does without them.
    """

    def __init__(self, averages: Averages, *, whole: bool = False, warn: Callable[[str], None] = lambda _text: None) -> None:
        self._averages, self._whole, self._warn = averages, whole, warn
        self._state: TrainingState | None = None
        self._parts: list[weakref.ref[Any]] = []  # a dead object's id may soon be another one's
        self._changed = 0

    def of(self, models: list[nn.Module], optimizers: list[Optimizer], changed: int = 0) -> TrainingState:
        """The state of these models and optimizers; `changed` counts what has joined their training."""
        averages = self._averages.living()
        parts = (*models, *optimizers, *averages)
        same = len(parts) == len(self._parts) and all(ref() is part for ref, part in zip(self._parts, parts, strict=True))
        if self._state is None or self._changed != changed or not same:
            self._state = TrainingState.discover(models, optimizers, averages, whole=self._whole)
            self._parts, self._changed = [weakref.ref(part) for part in parts], changed
            for text in self._state.missing():
                self._warn(text)
        return self._state

    def of_training(self, training: Training) -> TrainingState:
        """The state of a training as it is now."""
        return self.of(training.roots(), training.optimizers(), training.changed)


class RunCheckpoints:
    """Saves the newest training of a run, and resumes it."""

    def __init__(self, scope: Scope, process: Process, positions: Positions, named: Named) -> None:
        """`named` gives the models and optimizers that the script has named, as far as they are alive."""
        self._scope, self._process, self._positions, self._named = scope, process, positions, named
        self._stores: dict[Path, CheckpointStore] = {}
        self._recorded = RecordedState(scope.averages, whole=True)
        self._notes = RankNotes(scope.run.path)

    # Saving

    def save(self, folder: str | os.PathLike[str] | None, metrics: Mapping[str, Any] | None, *, wait: bool) -> Path | None:
        """Save the state as it is now; where it will be."""
        store = self.store(folder)
        training = self._scope.trainings[-1] if self._scope.trainings else None
        step = training.step if training is not None else self._scope.first_step
        try:
            return store.save_state(
                self.state(training),
                step,
                epoch=training.loader.epoch if training is not None else None,
                metrics=metrics,
                settings=self._scope.settings,
                also={"loader": self._positions.state_dict()},
                gradients=self._process.losses.accumulating,
                wait=wait,
            )
        except Exception as error:  # noqa: BLE001 - training continues
            store.failed(error, step)
            return None

    def store(self, folder: str | os.PathLike[str] | None = None) -> CheckpointStore:
        """The store in a folder, by default in that of the run."""
        path = Path(folder).absolute() if folder is not None else self._scope.run.path / "checkpoints"
        if path not in self._stores:
            self._stores[path] = CheckpointStore(path, run=self._scope.run)
        return self._stores[path]

    def close(self) -> None:
        """Finish the save in progress."""
        for store in self._stores.values():
            store.close()

    def state(self, training: Training | None) -> TrainingState:
        """Everything that belongs to the training, or to the one that will begin."""
        models, optimizers = self._parts(training)
        state = self._recorded.of(models, optimizers, training.changed if training is not None else -1)
        if not state.alive():
            raise UsageError("there is no training to save yet.", fix="call run.save() after the first step, or watch(model, …)")
        return state

    def _parts(self, training: Training | None) -> tuple[list[nn.Module], list[Optimizer]]:
        """Models and optimizers: as they were named, else what is trained or will be, in an order that every process has."""
        models, optimizers = self._named()
        if training is not None:
            own = [optimizer for member in training.members.values() if (optimizer := member.optimizer()) is not None]
            roots = models or training.roots()
        elif models and optimizers:
            own, roots = optimizers, models
        else:
            living = find_live_objects()
            own = optimizers or living.optimizers
            roots = models or find_roots(living.modules, [p for optimizer in own for p in optimizer_parameters(optimizer)])
        places = {id(one): number for number, one in enumerate((*models, *optimizers))}

        def place(one: nn.Module | Optimizer) -> tuple[int, str, int]:
            parameters = optimizer_parameters(one) if isinstance(one, Optimizer) else list(one.parameters())
            return places.get(id(one), len(places)), type(one).__qualname__, sum(p.numel() for p in parameters)

        return sorted(roots, key=place), sorted(own, key=place)

    # Restoring

    def restore(self, path: str | os.PathLike[str] | None, *, data: bool) -> Restored | None:
        """Resume from a checkpoint, a folder of them or a run; by default from the earlier ones of this run's name, if any."""
        if self._scope.trainings:
            raise UsageError("the training has begun already.", fix="call run.restore() before the first step")
        if path is None and (attempt := restarted()) is not None:
            if attempt.checkpoint is None:
                return None  # snapshots of the guard have no position in the data: the script's loop is fast-forwarded instead
            path = attempt.checkpoint if (Path(attempt.checkpoint) / MANIFEST).exists() else None
        folder, at = locate(path) if path is not None else (newest_of_run(self._scope.run) or self.store().folder, None)

        def unused(saved: SavedState) -> list[str]:
            return [] if data or saved.position is None else ["loader"]

        result = restore(folder, at, lambda: self.state(None), unused, notes=self._notes)
        if result is None:
            if path is not None:
                raise CannotRestore(f"There is no checkpoint in {folder}.", fix=f"holdfast checkpoints list {folder}")
            return None
        restored, saved = result
        if data and saved.position is not None:
            self._positions.load_state_dict(saved.position)
        passes = self._positions.passes if data else None
        restored = replace(restored, epoch=passes if passes is not None else restored.epoch)
        self._scope.first_step = restored.step
        self._process.loader.set_epoch(restored.epoch or 0)
        self._report(restored)
        return restored

    def _report(self, restored: Restored) -> None:
        """The recording continues from there; settings that differ are changes."""
        state = self.state(None)
        if self._scope.settings and restored.settings:
            self._scope.resumed(restored.path)
        live = {"optimizer": state.optimizers(), "scheduler": state.schedulers(), "scaler": state.scalers()}
        what = [name for name, things in live.items() if things]
        self.store().report.resumed(restored.path, restored.step, what, restored.skipped)
