"""Save the training on request, into the run's checkpoints or as one file for `torch.load`; or roll it back to a checkpoint.

The training waits only for a copy in memory; `finish` writes to disk in the caller's thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from holdfast.errors import HoldfastError
from holdfast.inside.observers.saved_batch import copy_to_host
from holdfast.inside.run_checkpoints import RunCheckpoints
from holdfast.signals.actions import Refused
from holdfast.state.position import Positions
from holdfast.state.ranks import current_rank, is_sharded
from holdfast.state.related_objects import find_related_objects
from holdfast.state.restore import Restored

if TYPE_CHECKING:
    from holdfast.inside.process import Process
    from holdfast.inside.scope import Scope
    from holdfast.inside.training import Training

Finish = Callable[[], dict[str, Any]]
_KEEP_LAST = 1000  # checkpoints saved on request are not deleted by later ones
_FILE_SUFFIXES = (".pt", ".pth", ".ckpt")


class SaveNow:
    """Saves one training on request."""

    def __init__(self, training: Training, scope: Scope, process: Process) -> None:
        self._training, self._scope, self._process = training, scope, process
        self._checkpoints: RunCheckpoints | None = None

    def save(self, path: str | None) -> Finish:
        """Copy the state between two steps; the returned function waits until it is on disk. Raises Refused."""
        self._script_settings()
        if path is not None and path.endswith(_FILE_SUFFIXES):
            return self._as_file(Path(path))
        checkpoints = self._run_checkpoints()
        folder = Path(path) if path is not None else None
        store = checkpoints.store(folder)
        store._saver.retention = replace(store._saver.retention, last=_KEEP_LAST, made_by="save")
        num_failures = len(store.troubles)
        written = checkpoints.save(folder, None, wait=False)

        def finish() -> dict[str, Any]:
            store.wait()
            if written is None or len(store.troubles) > num_failures:
                error = store.troubles[-1]["evidence"].get("error") if store.troubles else "nothing was saved"
                return {"ok": False, "error": str(error)}
            return {"ok": True, "path": str(written), "writes": current_rank() == 0}

        return finish

    def roll_back(self, to: str | None) -> Restored:
        """Restore a checkpoint between two steps: a step, a name, a path, `best`, or by default the newest clean one.

        The loop continues with its next batch, and steps are counted on. Raises Refused.
        """
        training = self._training
        self._script_settings()
        try:
            restored = self._run_checkpoints().roll_back(training, to)
        except HoldfastError as error:
            raise Refused(f"{error.problem} fix: {error.fix}") from error
        if training.guard is not None:
            training.guard.start_again()
        if training.control is not None:
            training.control.snapshots.drop_after(restored.step)  # a repair must not bring back what the user has rejected
        return restored

    def close(self) -> None:
        """Finish saves that are still being written."""
        if self._checkpoints is not None:
            self._checkpoints.close()

    def _script_settings(self) -> None:
        """Show the script's own learning rate: what `set` changed is applied to it at every update, and would count twice."""
        if self._training.settings is not None:
            self._training.settings.revert()

    def _run_checkpoints(self) -> RunCheckpoints:
        if self._checkpoints is None:
            scope = self._scope
            positions = scope.positions or Positions(warn=_ignore, on_batch=_ignore, on_end=_ignore)
            objects = lambda: (scope.models(), scope.optimizers())  # noqa: E731
            self._checkpoints = RunCheckpoints(scope, self._process, positions, objects)
        return self._checkpoints

    def _as_file(self, path: Path) -> Finish:
        path = path.absolute()
        if current_rank() != 0:
            return lambda: {"ok": True, "path": str(path), "writes": False}
        if not path.parent.is_dir():
            raise Refused(f"there is no folder {path.parent}")
        training = self._training
        models, optimizers = training.roots(), training.optimizers()
        if any(is_sharded(parameter) for model in models for parameter in model.parameters()):
            raise Refused("each rank holds a shard of the weights, which is not one file: save without a file name")
        schedulers = find_related_objects(models, optimizers).schedulers
        content: dict[str, Any] = {"step": training.step, "epoch": training.loader.epoch, "time": time.time()}
        for name, objects in (("model", models), ("optimizer", optimizers), ("scheduler", schedulers)):
            states = [copy_to_host(part.state_dict()) for part in objects]
            if states:
                content[name] = states[0] if len(states) == 1 else states
        return lambda: _write(content, path)


def _ignore(*_: Any) -> None:
    return None


def _write(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Write the file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save: Any = torch.save
        with temporary.open("wb") as file:
            getattr(save, "__wrapped__", save)(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        return {"ok": False, "error": f"{path} could not be written: {error}"}
    return {"ok": True, "path": str(path), "writes": True}
