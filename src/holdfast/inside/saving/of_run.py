"""`run.save()` and `run.restore()`: the store of a run, in its folder, with all that the recorded training has."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from holdfast.checkpoints.manifest import MANIFEST
from holdfast.errors import CannotRestore, UsageError
from holdfast.inside.discovery import find_living, find_roots
from holdfast.inside.restarted import restarted
from holdfast.inside.same import Same
from holdfast.inside.saving.board import Board
from holdfast.inside.saving.earlier import earlier_of, source_of
from holdfast.inside.saving.fsdp1 import by_name
from holdfast.inside.saving.gradients import put_gradients_back, read_gradients
from holdfast.inside.saving.positions import Positions
from holdfast.inside.saving.restored import Parts, Restored, refuse_missing, restore_by
from holdfast.inside.saving.saved_state import SavedState
from holdfast.inside.saving.store import CheckpointStore
from holdfast.inside.snapshots.reading import Optimizer
from holdfast.inside.snapshots.state import TrainingState

if TYPE_CHECKING:
    from holdfast.inside.scope import Scope
    from holdfast.inside.session import Session
    from holdfast.inside.training import Training


Named = Callable[[], tuple[list[nn.Module], list[Optimizer]]]


class StoreOfRun:
    """Saves the newest training of a run, wherever it is told to, and has it go on from there."""

    def __init__(self, scope: Scope, session: Session, positions: Positions, named: Named) -> None:
        """`named` gives the models and optimizers that the script has named, as far as they are alive."""
        self._scope, self._session, self._positions, self._named = scope, session, positions, named
        self._stores: dict[Path, CheckpointStore] = {}
        self._found: TrainingState | None = None
        self._found_in, self._same = (False, 0), Same()
        self._board = Board(scope.run.path)

    # Saving

    def save(self, folder: str | os.PathLike[str] | None, metrics: Mapping[str, Any] | None, *, wait: bool) -> Path | None:
        """Save the state as it is now; where it will be."""
        store = self.store(folder)
        training = self._scope.trainings[-1] if self._scope.trainings else None
        step = training.step if training is not None else self._scope.first_step
        try:
            state = self._state(training)
            return store.save_state(
                state,
                step,
                epoch=training.loader.epoch if training is not None else None,
                metrics=metrics,
                settings=self._scope.settings,
                also=self._also(state),
                wait=wait,
            )
        except Exception as error:  # noqa: BLE001 - the training goes on
            store.failed(error, step)
            return None

    def store(self, folder: str | os.PathLike[str] | None = None) -> CheckpointStore:
        """The store in a folder, by default in that of the run."""
        path = Path(folder).absolute() if folder is not None else self._scope.run.path / "checkpoints"
        if path not in self._stores:
            self._stores[path] = CheckpointStore(path, run=self._scope.run)
        return self._stores[path]

    def close(self) -> None:
        """Finish what is under way."""
        for store in self._stores.values():
            store.close()

    def _also(self, state: TrainingState) -> dict[str, Any]:
        also: dict[str, Any] = {"loader": self._positions.state_dict()}
        if self._session.losses.accumulating:
            also["gradients"] = read_gradients(state.optimizers())
        return also

    def _state(self, training: Training | None) -> TrainingState:
        """Everything that belongs to the training; found once, and again when something has joined."""
        models, optimizers = self._parts(training)
        averages = self._scope.averages.living()
        parts, found_in = (*models, *optimizers, *averages), (training is None, training.changed if training is not None else 0)
        if self._found is None or self._found_in != found_in or not self._same.as_before(parts):
            self._found = TrainingState.discover(models, optimizers, averages, whole=True)
            self._found_in, self._same = found_in, Same(parts)
        if not self._found.alive():
            raise UsageError("there is no training to save yet.", fix="call run.save() after the first step, or watch(model, …)")
        return self._found

    def _parts(self, training: Training | None) -> tuple[list[nn.Module], list[Optimizer]]:
        """Models and optimizers: as they were named, else what is trained or will be, in an order that every process has."""
        models, optimizers = self._named()
        if training is not None:
            own = [optimizer for member in training.members.values() if (optimizer := member.optimizer()) is not None]
            found = own, models or training.roots()
        elif models and optimizers:
            found = optimizers, models
        else:
            living = find_living()
            own = optimizers or living.optimizers
            parameters = [p for optimizer in own for group in optimizer.param_groups for p in group["params"]]
            found = own, models or find_roots(living.modules, parameters)
        places = {id(one): number for number, one in enumerate((*models, *optimizers))}

        def place(one: nn.Module | Optimizer) -> tuple[int, str, int]:
            return places.get(id(one), len(places)), *_likeness(one)

        return sorted(found[1], key=place), sorted(found[0], key=place)

    # Restoring

    def restore(self, path: str | os.PathLike[str] | None, *, data: bool) -> Restored | None:
        """Go on from a checkpoint, a folder of them or a run; by default from the earlier ones of this run's name, if any."""
        if self._scope.trainings:
            raise UsageError("the training has begun already.", fix="call run.restore() before the first step")
        if path is None and (told := restarted()) is not None:
            if told.checkpoint is None:
                return None  # what the guard has kept knows no place in the data: the script's loop is gone through instead
            path = told.checkpoint if (Path(told.checkpoint) / MANIFEST).exists() else None
        folder, at = source_of(path) if path is not None else (earlier_of(self._scope.run) or self.store().folder, None)
        restored = restore_by(folder, at, lambda found, parts: self._put_back(found, parts, data=data), self._board)
        if restored is None:
            if path is not None:
                raise CannotRestore(f"There is no checkpoint in {folder}.", fix=f"holdfast checkpoints list {folder}")
            return None
        passes = self._positions.passes if data else None
        restored = replace(restored, epoch=passes if passes is not None else restored.epoch)
        self._scope.first_step = restored.step
        self._session.loader.set_epoch(restored.epoch or 0)
        self._tell(restored)
        return restored

    def _put_back(self, path: Path, parts: Parts, *, data: bool) -> list[str]:
        state = by_name(self._state(None))
        try:
            saved = SavedState.of(path, parts, state)
            refuse_missing(saved.tree, state.models())
            state.put_back(saved.tree, saved.hosts, randomness=saved.has_randomness)
        except CannotRestore as error:
            fix = f"see what differs: holdfast checkpoints compare {path} --with package.module:factory"
            raise CannotRestore(f"{path} does not fit: {error.problem}", fix=fix) from None
        if saved.gradients:
            put_gradients_back(state.optimizers(), saved.gradients)
        if data and saved.position is not None:
            self._positions.load_state_dict(saved.position)
        return [] if data or saved.position is None else ["loader"]

    def _tell(self, restored: Restored) -> None:
        """What is recorded goes on from there; settings that differ are changes."""
        scope, state = self._scope, self._state(None)
        if scope.settings and restored.settings:
            scope.resumed(restored.path)
        companions = {"optimizer": state.optimizers(), "scheduler": state.schedulers(), "scaler": state.scalers()}
        self.store().goes_on(restored, [name for name, things in companions.items() if things])


def _likeness(thing: Any) -> tuple[str, int]:
    """What tells models and optimizers apart in every process: their class and how many numbers they hold."""
    groups = thing.param_groups if isinstance(thing, Optimizer) else [{"params": list(thing.parameters())}]
    return type(thing).__qualname__, sum(p.numel() for group in groups for p in group["params"])
