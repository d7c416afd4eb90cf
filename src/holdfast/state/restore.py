"""Restore a training from a checkpoint of the store, or from the newest earlier one that is clean."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from holdfast.checkpoints.manifest import MANIFEST, kept_in, parse_name, read_manifest, torn_in
from holdfast.checkpoints.read import read_checkpoint
from holdfast.checkpoints.write import best_checkpoint
from holdfast.errors import CannotRestore, StorageError, UsageError
from holdfast.signals.run_folder import RunFolder
from holdfast.state.checkpoint_parts import SavedState
from holdfast.state.objects import not_in_state_dict, set_gradients
from holdfast.state.parameters import Optimizer, buffers_in, parameters_in
from holdfast.state.ranks import RankNotes
from holdfast.state.related_objects import RelatedObjects, innermost
from holdfast.state.sharded import SHARDS, place_shards
from holdfast.state.training_state import TrainingState
from holdfast.state.values import Tree, not_plain, unflatten

_KINDS = {"optimizer": "optimizers", "scheduler": "schedulers", "scaler": "scalers", "ema": "averages"}
_NAMED = 3
_CHECKPOINTS = "checkpoints"
At = int | str | os.PathLike[str] | None
Select = Callable[[SavedState], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The checkpoint that a training resumes from."""

    path: Path
    step: int
    epoch: int | None
    metrics: dict[str, float]
    settings: dict[str, Any]
    skipped: list[str] = field(default_factory=list)  # unusable checkpoints, with the reason
    unused: list[str] = field(default_factory=list)  # states in the checkpoint for which no object was passed


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingParts:
    """The objects that a script passes to the store: each one object or a list."""

    model: Any
    optimizer: Any = None
    scheduler: Any = None
    scaler: Any = None
    ema: Any = None
    loader: Any = None

    def state(self) -> TrainingState:
        """The state of exactly these objects. Raises UsageError for what cannot be saved."""
        models, optimizers = as_list(self.model), [innermost(optimizer) for optimizer in as_list(self.optimizer)]
        if not models:
            raise UsageError("there is no model to save.", fix="store.save(step, model=model, optimizer=optimizer)")
        for model in models:
            if not isinstance(model, nn.Module):
                raise UsageError(f"{type(model).__name__} is not an nn.Module.", fix="pass the model, not its state_dict()")
        for optimizer in optimizers:
            if not isinstance(optimizer, Optimizer):
                raise UsageError(f"{type(optimizer).__name__} is not a torch.optim.Optimizer.", fix="pass the optimizer itself")
        for obj in (*as_list(self.scheduler), *as_list(self.scaler), *as_list(self.ema), *as_list(self.loader)):
            if not (hasattr(obj, "state_dict") and hasattr(obj, "load_state_dict")):
                name = type(obj).__name__
                fix = f"add state_dict() and load_state_dict() to {name}"
                if any(obj is loader for loader in as_list(self.loader)):
                    fix = "batches = holdfast.Position(loader); iterate over batches, and pass loader=batches"
                raise UsageError(f"{name} has no state that can be saved.", fix=fix)
        related = RelatedObjects(as_list(self.scheduler), as_list(self.scaler), as_list(self.ema))
        return TrainingState(models, optimizers, related, whole=True)

    def not_saved(self) -> list[str]:
        """Messages about state that cannot be saved, as it is not plain; torch's own types are not checked."""
        others = [obj for name in ("scheduler", "scaler", "ema", "loader") for obj in as_list(getattr(self, name))]
        return [
            f"the state of {type(obj).__name__} holds what cannot be loaded without running code: {', '.join(values[:3])}"
            for obj in others
            if not isinstance(obj, (nn.Module, LRScheduler)) and (values := not_plain(obj.state_dict()))
        ]

    def position(self) -> dict[str, Any]:
        """The state of the loader, if there is one."""
        if self.loader is None:
            return {}
        if isinstance(self.loader, (list, tuple)):
            return {"loader": [loader.state_dict() for loader in self.loader]}
        return {"loader": self.loader.state_dict()}

    def select(self, saved: SavedState) -> list[str]:
        """Remove states without an object, and name them. Raises CannotRestore if a state is missing."""
        unused = []
        for name, kind in _KINDS.items():
            live, states = as_list(getattr(self, name)), saved.tree[kind]
            if not live and states:
                unused.append(name)
                saved.tree[kind] = []
            elif len(states) < len(live):
                raise _lacks(name)
        saved.tree["counters"] = []
        if self.loader is None and saved.position is not None:
            unused.append("loader")
        if self.loader is not None and saved.position is None:
            raise _lacks("loader")
        return unused

    def set_position(self, position: Any) -> None:
        """Have the loaders continue from a position."""
        if self.loader is not None:
            positions = position if isinstance(self.loader, (list, tuple)) else [position]
            for loader, state in zip(as_list(self.loader), positions, strict=True):
                loader.load_state_dict(state)


def as_list(objects: Any) -> list[Any]:
    """One object or several as a list; an nn.ModuleList is one object."""
    if objects is None:
        return []
    return list(objects) if isinstance(objects, (list, tuple)) else [objects]


def restore(
    folder: Path,
    at: At,
    live: Callable[[], TrainingState],
    select: Select,
    *,
    notes: RankNotes,
    randomness: bool = True,
    in_place: bool = False,
) -> tuple[Restored, SavedState] | None:
    """Restore the given checkpoint, or the newest earlier clean one; None if there is none at all.

    `live` returns the training's state; `select` removes unwanted states from the saved one, and names them. All ranks take
    rank 0's choice. Raises CannotRestore, with nothing changed, if none is usable or it does not fit. `in_place` is a rollback:
    the random generators stay, so that the same batches do not come again, and so do large frozen parameters, which snapshots
    leave out.
    """
    choice = notes.choose(lambda: _choose(folder, at)) or {"path": None, "skipped": []}
    skipped: list[str] = choice["skipped"]
    if choice["path"] is None:
        if skipped or at is not None:
            why = " ".join(skipped) or f"There is no checkpoint {at!r} in {folder}."
            raise CannotRestore(f"Nothing was restored. {why}", fix=f"holdfast checkpoints list {folder}")
        return None
    path, state = Path(choice["path"]), live()
    try:
        saved = SavedState.of(path, read_checkpoint(path, verify=False))
        unused = select(saved)
        saved.tree = state.in_live_order(saved.tree)
        if (path / SHARDS).exists() or state.is_sharded():
            place_shards(path, saved, state.read())
        if not in_place:
            _refuse_missing(saved.tree, state.models())
        state.restore(saved.tree, saved.hosts, randomness=randomness and not in_place and saved.has_randomness)
    except CannotRestore as error:
        fix = f"see what differs: holdfast checkpoints compare {path} --with package.module:factory"
        raise CannotRestore(f"{path} does not fit: {error.problem}", fix=fix) from None
    gradients = unflatten(saved.tree.get("gradients", []), lambda ref: saved.hosts[ref.number].clone())
    for optimizer, own in zip(state.optimizers(), gradients, strict=False):
        set_gradients(optimizer, own)
    manifest = read_manifest(path) or {}
    restored = Restored(
        path=path,
        step=int(manifest["step"]),
        epoch=manifest.get("epoch"),
        metrics=dict(manifest.get("metrics") or {}),
        settings=dict(manifest.get("settings") or {}),
        skipped=skipped,
        unused=unused,
    )
    return restored, saved


def _choose(folder: Path, at: At) -> dict[str, Any]:
    """The checkpoint to restore, fully verified, and why others were skipped."""
    skipped: list[str] = []
    for path in candidates(folder, at):
        try:
            read_checkpoint(path)
        except StorageError as error:
            skipped.append(error.problem)
        else:
            return {"path": str(path), "skipped": skipped}
    return {"path": None, "skipped": skipped}


def candidates(folder: Path, at: At) -> list[Path]:
    """The checkpoints to try, torn ones too: the given one, then older ones, newest first."""
    if at == "best":
        best = best_checkpoint(folder)
        others = candidates(folder, None)
        return others if best is None else [best, *(path for path in others if path != best)]
    if at not in (None, "last") and not isinstance(at, int):
        path = Path(at).absolute()
        others = candidates(path.parent, None)
        return [path, *(others[others.index(path) + 1 :] if path in others else ())]
    kept = [checkpoint.path for checkpoint in kept_in(folder)]
    for step, path in torn_in(folder):  # a torn one has lost its number: it comes after those of its step
        kept.insert(sum(_step_of(earlier) <= step for earlier in kept), path)
    if isinstance(at, int):
        kept = [path for path in kept if _step_of(path) <= at] if any(_step_of(path) == at for path in kept) else []
    return kept[::-1]


def _step_of(path: Path) -> int:
    named = parse_name(path.name)
    return named[0] if named is not None else -1


def _lacks(what: str) -> CannotRestore:
    return CannotRestore(f"it holds no {what}, but one was passed", fix="")


def _refuse_missing(tree: Tree, models: list[nn.Module]) -> None:
    """Refuse a checkpoint without all parameters: the others would stay at their random initialization."""
    for saved, model in zip(tree["models"], models, strict=False):
        names = {name for kind in saved.values() for name in kind}
        required = {*parameters_in(model), *buffers_in(model)} - not_in_state_dict(model)
        if missing := sorted(required - names):
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            raise CannotRestore(f"it does not hold {', '.join(missing[:_NAMED])}{more}", fix="")


# Where checkpoints are


def locate(path: str | os.PathLike[str]) -> tuple[Path, Path | None]:
    """The checkpoint folder for a path, and the checkpoint if the path is one."""
    path = Path(path).absolute()
    if (path / MANIFEST).exists() or (parse_name(path.name) is not None and path.is_dir()):
        return path.parent, path
    if (path / "run.json").exists():
        return path / _CHECKPOINTS, None
    if not path.is_dir():
        raise CannotRestore(
            f"There is nothing to restore at {path}.",
            fix="name a checkpoint, a folder of them, or a run folder; `holdfast checkpoints list` shows what is there",
        )
    return path, None


def newest_of_run(run: RunFolder) -> Path | None:
    """The checkpoint folder of this run, or of the newest earlier run of the same name with checkpoints."""
    return next((folder for folder in _of_same_name(run) if kept_in(folder)), None)


def _of_same_name(run: RunFolder) -> Iterator[Path]:
    yield run.path / _CHECKPOINTS
    name = run.info().get("asked")
    if not isinstance(name, str):
        return
    earlier: list[tuple[float, Path]] = []
    for folder in run.path.parent.iterdir():
        info = RunFolder(folder).info()
        if not folder.is_symlink() and folder != run.path and info.get("asked") == name:
            earlier.append((float(info.get("started") or 0.0), folder))
    yield from (folder / _CHECKPOINTS for _, folder in sorted(earlier, reverse=True))
