"""Save the training when someone asks for it: into the run's checkpoints, or as one file that `torch.load` reads.

The training is held for a copy in memory; the disk is written to by whoever called `finish`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from holdfast.inside.run_checkpoints import RunCheckpoints
from holdfast.signals.actions import Refused
from holdfast.state.position import Positions
from holdfast.state.ranks import current_rank, is_sharded
from holdfast.state.related_objects import find_related_objects

if TYPE_CHECKING:
    from holdfast.inside.process import Process
    from holdfast.inside.scope import Scope
    from holdfast.inside.training import Training

Finish = Callable[[], dict[str, Any]]
_KEPT = 1000  # what was asked for by hand is not thrown away by the next one
_FILES = (".pt", ".pth", ".ckpt")
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "OptimizedModule")


class SaveNow:
    """Saves one training on request."""

    def __init__(self, training: Training, scope: Scope, process: Process) -> None:
        self._training, self._scope, self._process = training, scope, process
        self._store: RunCheckpoints | None = None

    def save(self, path: str | None) -> Finish:
        """Copy the state as it is now, between two steps; `finish` waits until it is on disk. Raises Refused."""
        if path is not None and path.endswith(_FILES):
            return self._as_file(Path(path))
        own = self._own_store()
        folder = Path(path) if path is not None else None
        store = own.store(folder)
        store._saver.retention = replace(store._saver.retention, last=_KEPT, made_by="save")
        told = len(store.troubles)
        written = own.save(folder, None, wait=False)

        def finish() -> dict[str, Any]:
            store.wait()
            if written is None or len(store.troubles) > told:
                words = store.troubles[-1]["evidence"].get("error") if store.troubles else "nothing was saved"
                return {"ok": False, "error": str(words)}
            return {"ok": True, "path": str(written), "writes": current_rank() == 0}

        return finish

    def close(self) -> None:
        """Finish what is under way."""
        if self._store is not None:
            self._store.close()

    def _own_store(self) -> RunCheckpoints:
        if self._store is None:
            positions = self._scope.positions or Positions(warn=_silent, on_batch=_silent, on_end=_silent)
            self._store = RunCheckpoints(self._scope, self._process, positions, self._named)
        return self._store

    def _named(self) -> tuple[list[Any], list[Any]]:
        return self._scope.models(), self._scope.optimizers()

    def _as_file(self, path: Path) -> Finish:
        path = path.absolute()
        if current_rank() != 0:
            return lambda: {"ok": True, "path": str(path), "writes": False}
        if not path.parent.is_dir():
            raise Refused(f"there is no folder {path.parent}")
        optimizers = [one for member in self._training.members.values() if (one := member.optimizer()) is not None]
        if any(is_sharded(p) for o in optimizers for group in o.param_groups for p in group["params"]):
            raise Refused("each rank holds a part of the weights, which does not make one file: save without a file name")
        models = [_unwrapped(model) for model in self._training.roots()]
        schedulers = [one for one in find_related_objects(models, optimizers).schedulers if hasattr(one, "state_dict")]
        content: dict[str, Any] = {"step": self._training.step, "epoch": self._training.loader.epoch, "time": time.time()}
        for name, things in (("model", models), ("optimizer", optimizers), ("scheduler", schedulers)):
            states = [_copied(thing.state_dict()) for thing in things]
            if states:
                content[name] = states[0] if len(states) == 1 else states
        return lambda: _written(content, path)


def _silent(*_: Any) -> None:
    return None


def _unwrapped(model: Any) -> Any:
    while type(model).__name__ in _WRAPPERS:
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    return model


def _copied(state: Any) -> Any:
    """The same containers, with the tensors as they are now, on the host."""
    if isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {name: _copied(value) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        copied = [_copied(value) for value in state]
        return copied if isinstance(state, list) else tuple(copied)
    return state


def _written(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Write the file whole or not at all."""
    spare = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save: Any = torch.save
        with spare.open("wb") as file:
            getattr(save, "__wrapped__", save)(content, file)
            file.flush()
            os.fsync(file.fileno())
        spare.replace(path)
    except (OSError, RuntimeError) as error:
        spare.unlink(missing_ok=True)
        return {"ok": False, "error": f"{path} could not be written: {error}"}
    return {"ok": True, "path": str(path), "writes": True}
