"""The state of a recorded training and its checkpoints: `run.save()`, `run.restore()`, and `holdfast save` and `rollback`."""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from holdfast.checkpoints.manifest import MANIFEST, Kept, kept_in
from holdfast.errors import CannotRestore, HoldfastError, UsageError
from holdfast.inside.control.restarted import ELASTIC, Restarted, restarted
from holdfast.inside.discovery import find_live_objects, find_roots
from holdfast.inside.guard.skipping import Averages
from holdfast.inside.training import Training
from holdfast.signals.actions import Refused
from holdfast.signals.run_folder import RunFolder
from holdfast.state.checkpoint_parts import SavedState
from holdfast.state.parameters import Optimizer, parameters_of
from holdfast.state.ranks import RankNotes, current_rank, world_size
from holdfast.state.restore import Restored, locate, newest_of_run, restore
from holdfast.state.store import CheckpointStore, is_clean
from holdfast.state.training_state import TrainingState

if TYPE_CHECKING:
    from holdfast.inside.process import Process
    from holdfast.inside.scope import Scope

Parts = tuple[list[nn.Module], list[Optimizer]]
_KEEP_LAST = 1000  # checkpoints saved on request are not deleted by later ones
_FILE_SUFFIXES = (".pt", ".pth", ".ckpt")
_ONE_FILE = "for one file: holdfast eval 'torch.save(model.state_dict(), \"{}\")'"


class RecordedState:
    """The state of a recorded training: discovered once, and again when an object was added or is gone.

    With `whole` it includes large frozen parameters, as a checkpoint needs; a snapshot does not.
    """

    def __init__(self, averages: Averages, *, whole: bool = False, warn: Callable[[str], None] = lambda _text: None) -> None:
        self._averages, self._whole, self._warn = averages, whole, warn
        self._state: TrainingState | None = None
        self._parts: list[weakref.ref[Any]] = []  # not ids: those of dead objects are reused
        self._changed = 0

    def of(self, models: list[nn.Module], optimizers: list[Optimizer], changed: int = 0) -> TrainingState:
        """The state of these models and optimizers; `changed` is the change counter of their training."""
        averages = self._averages.alive()
        parts = (*models, *optimizers, *averages)
        is_same = len(parts) == len(self._parts) and all(ref() is part for ref, part in zip(self._parts, parts, strict=True))
        if self._state is None or self._changed != changed or not is_same:
            self._state = TrainingState.discover(models, optimizers, averages, whole=self._whole)
            self._parts, self._changed = [weakref.ref(part) for part in parts], changed
            for text in self._state.missing():
                self._warn(text)
        return self._state

    def of_training(self, training: Training) -> TrainingState:
        """The current state of a training."""
        return self.of(training.roots(), training.optimizers(), training.changed)


class RunCheckpoints:
    """Saves and restores the newest training of a run."""

    def __init__(self, scope: Scope, process: Process, watched: Callable[[], Parts] | None = None) -> None:
        """`watched` returns the models and optimizers that the script passed to `watch`."""
        self._scope, self._process = scope, process
        self._watched = watched or (lambda: (scope.models(), scope.optimizers()))
        self._stores: dict[Path, CheckpointStore] = {}
        self._keep: dict[str, Any] = {}
        self._recorded = RecordedState(scope.averages, whole=True)
        self._notes = RankNotes(scope.run.path)

    # Saving

    def save(
        self,
        folder: str | os.PathLike[str] | None,
        metrics: Mapping[str, Any] | None,
        *,
        wait: bool,
        skip_if_busy: bool = False,
    ) -> Path | None:
        """Save the current state; returns the path of the checkpoint."""
        store = self.store(folder)
        if skip_if_busy and world_size() == 1 and not store.wait(0.0):  # ranks would not agree on it
            return None
        if self._process.saves.fast_forwarding():  # the state is that of a later step than the position in the data
            return None
        training = self._scope.trainings[-1] if self._scope.trainings else None
        step = training.step if training is not None else self._scope.first_step
        try:
            return store.save_state(
                self.state(training),
                step,
                epoch=training.loader.epoch if training is not None else None,
                metrics=metrics,
                settings=self._scope.settings,
                also={"loader": self._scope.positions.state_dict()} if self._scope.positions is not None else {},
                gradients=self._process.losses.accumulating,
                wait=wait,
            )
        except Exception as error:  # noqa: BLE001 - training continues
            store.failed(error, step)
            return None

    def store(self, folder: str | os.PathLike[str] | None = None) -> CheckpointStore:
        """The checkpoint store in a folder, by default the run's."""
        path = Path(folder).absolute() if folder is not None else self._scope.run.path / "checkpoints"
        if path not in self._stores:
            self._stores[path] = CheckpointStore(path, run=self._scope.run, **self._keep)
        return self._stores[path]

    def save_on_request(self, training: Training, path: str | None = None) -> Callable[[], dict[str, Any]]:
        """Copy the state between two steps; the returned function waits until it is on disk. Raises Refused."""
        if path is not None and path.endswith(_FILE_SUFFIXES):
            raise Refused(f"a checkpoint is a folder, not a file; {_ONE_FILE.format(path)}")
        _show_script_settings(training)
        store = self.store(path)
        store._saver.retention = replace(store._saver.retention, last=_KEEP_LAST, made_by="save")
        num_failures = len(store.troubles)
        written = self.save(path, None, wait=False)

        def finish() -> dict[str, Any]:
            store.wait()
            if written is None or len(store.troubles) > num_failures:
                error = store.troubles[-1]["evidence"].get("error") if store.troubles else "nothing was saved"
                return {"ok": False, "error": str(error)}
            return {"ok": True, "path": str(written), "value": str(written), "writes": current_rank() == 0}

        return finish

    def keep(self, **options: Any) -> None:
        """Which checkpoints are kept: options of CheckpointStore."""
        if self._stores:
            raise UsageError("checkpoints are being saved already.", fix="call run.keep() before the first run.save()")
        self._keep = options

    def close(self) -> None:
        """Finish the saves in progress."""
        for store in self._stores.values():
            store.close()

    def state(self, training: Training | None) -> TrainingState:
        """The state of the training, or of the one that will begin."""
        models, optimizers = self._parts(training)
        state = self._recorded.of(models, optimizers, training.changed if training is not None else -1)
        if not state.alive():
            raise UsageError("there is no training to save yet.", fix="call run.save() after the first step, or watch(model, …)")
        return state

    def _parts(self, training: Training | None) -> Parts:
        """Models and optimizers: those passed to `watch`, else the trained ones, in the same order in every process."""
        models, optimizers = self._watched()
        positions = {id(part): position for position, part in enumerate((*models, *optimizers))}
        if training is not None:
            models = models or training.roots()
            optimizers = [optimizer for member in training.members.values() if (optimizer := member.optimizer()) is not None]
        elif not (models and optimizers):
            live = find_live_objects()
            optimizers = optimizers or live.optimizers
            models = models or find_roots(live.modules, [p for optimizer in optimizers for p in parameters_of(optimizer)])

        def order(part: nn.Module | Optimizer) -> tuple[int, str, int]:
            parameters = parameters_of(part) if isinstance(part, Optimizer) else list(part.parameters())
            return positions.get(id(part), len(positions)), type(part).__qualname__, sum(p.numel() for p in parameters)

        return sorted(models, key=order), sorted(optimizers, key=order)

    # Restoring

    def restore(self, path: str | os.PathLike[str] | None, *, data: bool) -> Restored | None:
        """Resume from a checkpoint, a folder of them or a run; by default from this run or an earlier one of its name."""
        if self._scope.trainings:
            raise UsageError("the training has begun already.", fix="call run.restore() before the first step")
        if path is None and (attempt := restarted_in(self._scope.run)) is not None:
            if attempt.checkpoint is None:
                return None  # the guard's snapshots have no data position: the loop is fast-forwarded instead
            path = attempt.checkpoint if (Path(attempt.checkpoint) / MANIFEST).exists() else None
        folder, step = locate(path) if path is not None else (newest_of_run(self._scope.run) or self.store().folder, None)

        def unused(saved: SavedState) -> list[str]:
            return [] if data or saved.position is None else ["loader"]

        result = restore(folder, step, lambda: self.state(None), unused, notes=self._notes)
        if result is None:
            if path is not None:
                raise CannotRestore(f"There is no checkpoint in {folder}.", fix=f"holdfast checkpoints list {folder}")
            return None
        restored, saved = result
        positions = self._scope.positions
        if data and saved.position is not None:
            positions.load_state_dict(saved.position)
        passes = positions.passes if data else None
        restored = replace(restored, epoch=passes if passes is not None else restored.epoch)
        self._scope.first_step = restored.step
        self._process.loader.set_epoch(restored.epoch or 0)
        self._report(restored)
        return restored

    def roll_back(self, training: Training, to: str | None) -> Restored:
        """Restore a checkpoint between two steps: a step, a name, a path or `best`; by default the newest clean one.

        The loop continues with its next batch, and steps are counted on. Raises Refused.
        """
        _show_script_settings(training)
        folder = newest_of_run(self._scope.run) or self.store().folder
        if kept_in(own := training.recorder.checkpoints):  # where a script has several trainings
            folder = own
        at = int(to) if to is not None and to.isdecimal() else folder / to if to not in (None, "best") else to
        try:
            result = restore(folder, at, lambda: self.state(training), lambda _: [], notes=self._notes, in_place=True)
        except HoldfastError as error:
            raise Refused(f"{error.problem} fix: {error.fix}") from error
        if result is None:
            raise Refused("This run has no checkpoint yet. fix: holdfast save makes one, to roll back to later")
        if training.guard is not None:
            training.guard.start_again()
        if training.control is not None:
            training.control.snapshots.drop_after(result[0].step)  # a repair must not bring back what the user has rejected
        return result[0]

    def _report(self, restored: Restored) -> None:
        """Record the resume; settings that differ count as changes."""
        state = self.state(None)
        if self._scope.settings and restored.settings:
            self._scope.resumed(restored.path)
        parts = {"optimizer": state.optimizers(), "scheduler": state.schedulers(), "scaler": state.scalers()}
        present = [name for name, objects in parts.items() if objects]
        self.store().report.resumed(restored.path, restored.step, present, restored.skipped)


def _show_script_settings(training: Training) -> None:
    """Show the script's own learning rate: what `set` changed is applied to it at every update, and would count twice."""
    if training.settings is not None:
        training.settings.revert()


@cache
def restarted_in(run: RunFolder) -> Restarted | None:
    """The settings of this attempt; after a restart by torchrun with the newest checkpoint of now, the same on all ranks.

    The supervisor sees nothing of such a restart (`--max-restarts`, or a node that joined or left), and its environment is still
    that of the attempt. Rank 0 looks for the newest verified checkpoint, and tells the others.
    """
    restart = restarted()
    if os.environ.get(ELASTIC) != "1":
        return restart
    try:
        choice = RankNotes(run.path).choose(lambda: _choose(run))
    except CannotRestore:  # rank 0 does not train
        return restart
    return restart if choice is None else replace(restart or Restarted(attempt=1), **choice)


def _choose(run: RunFolder) -> dict[str, Any] | None:
    """On rank 0: the newest checkpoints; None if these are the first ranks of the attempt."""
    if not _has_trained_before(run):
        return None
    kept = list(reversed(kept_in(run.path / "checkpoints")))
    newest = next((checkpoint for checkpoint in kept if is_clean(checkpoint.path)), None)
    own = next((c for c in kept if c.manifest.get("made_by") != "guard" and is_clean(c.path)), None)
    with contextlib.suppress(OSError):
        origin = f"from {newest.path.name}" if newest is not None else "from the start: no clean checkpoint was saved"
        settings = {"by": "torchrun", "checkpoint_step": newest.step if newest is not None else None}
        row = {"action": "restart", "step": newest.step if newest is not None else 0, "because": "process-died", "settings": {}}
        run.journal.write("action", **row, **settings, state="done", detail=f"torchrun restarted the ranks, {origin}", rank=0)
    return {**_named(own, "checkpoint", "step"), **_named(newest, "kept", "kept_step")}


def _has_trained_before(run: RunFolder) -> bool:
    """Whether rank 0 has trained in this attempt already, in another process."""
    attempt = os.environ.get("HOLDFAST_ATTEMPT", "1")
    infos = [recording.info() for recording in run.recordings() if recording.rank == current_rank()]
    own = (socket.gethostname(), os.getpid())
    return any(str(info.get("attempt")) == attempt and (info.get("host"), info.get("pid")) != own for info in infos)


def _named(kept: Kept | None, path: str, step: str) -> dict[str, Any]:
    return {path: str(kept.path) if kept is not None else None, step: kept.step if kept is not None else None}
