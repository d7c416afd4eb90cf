"""Restore a training from a checkpoint of the store, or from the newest earlier one that is clean."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from holdfast.checkpoints.manifest import Kept, kept_in, parse_name, read_manifest, torn_in
from holdfast.checkpoints.read import read_checkpoint
from holdfast.checkpoints.write import best_checkpoint
from holdfast.errors import CannotRestore, StorageError
from holdfast.inside.ranks import current_rank
from holdfast.inside.saving.board import Board, speaks
from holdfast.inside.saving.fsdp1 import by_name
from holdfast.inside.saving.given import Given, each
from holdfast.inside.saving.gradients import put_gradients_back
from holdfast.inside.saving.saved_state import SavedState
from holdfast.inside.snapshots.reading import Tree, buffers_in, not_in_state_dict, parameters_in

_KINDS = {"optimizer": "optimizers", "scheduler": "schedulers", "scaler": "scalers", "ema": "averages"}
_NAMED = 3
At = int | str | os.PathLike[str] | None
Parts = dict[str, Any]
PutBack = Callable[[Path, Parts], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a training goes on from."""

    path: Path
    step: int
    epoch: int | None
    metrics: dict[str, float]
    settings: dict[str, Any]
    skipped: list[str] = field(default_factory=list)  # what was passed over, and why
    unused: list[str] = field(default_factory=list)  # what the checkpoint holds that nothing was given for


def restore(folder: Path, given: Given, at: At, *, randomness: bool, board: Board | None = None) -> Restored | None:
    """Put the asked checkpoint, or the newest earlier clean one, into what was given. None if there is none at all.

    Raises CannotRestore if there are some and none can be used, or if it does not fit; the training is then as it was.
    """
    return restore_by(folder, at, lambda path, parts: _put_back(path, parts, given, randomness=randomness), board)


def restore_by(folder: Path, at: At, put_back: PutBack, board: Board | None) -> Restored | None:
    """Have the asked checkpoint, or the newest earlier clean one, put back. With a board all ranks take the one of rank 0."""
    skipped: list[str] = []
    chosen = _choose(folder, at, skipped, board)
    if chosen is None:
        if skipped or at is not None:
            why = " ".join(skipped) or f"There is no checkpoint {at!r} in {folder}."
            raise CannotRestore(f"Nothing was restored. {why}", fix=f"holdfast checkpoints list {folder}")
        return None
    path, parts = chosen
    manifest = read_manifest(path) or {}
    unused = put_back(path, parts)
    return Restored(
        path=path,
        step=int(manifest["step"]),
        epoch=manifest.get("epoch"),
        metrics=dict(manifest.get("metrics") or {}),
        settings=dict(manifest.get("settings") or {}),
        skipped=skipped,
        unused=unused,
    )


def _choose(folder: Path, at: At, skipped: list[str], board: Board | None) -> tuple[Path, Parts] | None:
    """The checkpoint to restore and what it holds; what was passed over goes to `skipped`."""
    if board is None or not speaks():
        return next(_readable(folder, at, skipped), None)
    if current_rank() != 0:
        choice = board.choice()
        skipped += choice["skipped"]
        return (Path(choice["path"]), read_checkpoint(Path(choice["path"]), verify=False)) if choice["path"] else None
    chosen = None
    board.choosing()
    try:
        chosen = next(_readable(folder, at, skipped), None)
    finally:
        board.announce({"path": str(chosen[0]) if chosen is not None else None, "skipped": skipped})
    return chosen


def _readable(folder: Path, at: At, skipped: list[str]) -> Iterator[tuple[Path, Parts]]:
    for path in candidates(folder, at, skipped):
        try:
            yield path, read_checkpoint(path)
        except StorageError as error:
            skipped.append(error.problem)


def candidates(folder: Path, at: At, skipped: list[str]) -> Iterator[Path]:
    """The checkpoints to try: the one that is asked for, then those that are older than it, the newest first.

    What is not whole is passed over, and noted, where it would have come first.
    """
    kept = kept_in(folder)
    if isinstance(at, int):
        kept = [one for one in kept if one.step <= at]
        exists = any(one.step == at for one in kept) or any(step == at for step, _ in torn_in(folder))
        kept = kept if exists else []
    elif at == "best":
        best = best_checkpoint(folder)
        if best is not None:
            yield best
        kept = [one for one in kept if one.path != best]
    elif at not in (None, "last"):
        path = Path(at)
        yield path
        kept = _older_than(path)
    newest = kept[-1].step if kept else -1
    if at is None or isinstance(at, (int, str)):
        skipped += [
            f"{path} is not whole." for step, path in torn_in(folder) if step > newest and (not isinstance(at, int) or step <= at)
        ]
    yield from (one.path for one in reversed(kept))


def _older_than(path: Path) -> list[Kept]:
    """The checkpoints beside one that are older; if that one is torn, by its name."""
    kept = kept_in(path.absolute().parent)
    this = next((one for one in kept if one.path.name == path.name), None)
    if this is not None:
        return [one for one in kept if one.age < this.age]
    named = parse_name(path.name)
    return [one for one in kept if named is not None and one.step <= named[0]]


def _put_back(path: Path, parts: Parts, given: Given, *, randomness: bool) -> list[str]:
    """Put a checkpoint into the training; returns what of it nothing was given for."""
    state = by_name(given.state())
    try:
        saved = SavedState.of(path, parts, state)
        unused = _only_what_was_given(saved.tree, saved.position, given)
        refuse_missing(saved.tree, each(given.model))
        state.put_back(saved.tree, saved.hosts, randomness=randomness and saved.has_randomness)
    except CannotRestore as error:
        fix = f"see what differs: holdfast checkpoints compare {path} --with package.module:factory"
        raise CannotRestore(f"{path} does not fit: {error.problem}", fix=fix) from None
    if saved.gradients and given.optimizer is not None:
        put_gradients_back(state.optimizers(), saved.gradients)
    if given.loader is not None:
        positions = saved.position if isinstance(given.loader, (list, tuple)) else [saved.position]
        for loader, position in zip(each(given.loader), positions, strict=True):
            loader.load_state_dict(position)
    return unused


def _only_what_was_given(tree: Tree, position: Any, given: Given) -> list[str]:
    """Take out of the tree what nothing was given for, and name it; refuse if something was given that is not there."""
    unused = []
    for name, kind in _KINDS.items():
        live, saved = each(getattr(given, name)), tree[kind]
        if not live and saved:
            unused.append(name)
            tree[kind] = []
        elif len(saved) < len(live):
            raise _lacks(name)
    tree["counters"] = []
    if given.loader is None and position is not None:
        unused.append("loader")
    if given.loader is not None and position is None:
        raise _lacks("loader")
    return unused


def _lacks(what: str) -> CannotRestore:
    return CannotRestore(f"it holds no {what}, and one was given", fix="")


def refuse_missing(tree: Tree, models: list[nn.Module]) -> None:
    """A parameter that the checkpoint does not have would stay as it was made: random."""
    for saved, model in zip(tree["models"], models, strict=False):
        known = {name for kind in saved.values() for name in kind}
        wanted = {*parameters_in(model), *buffers_in(model)} - not_in_state_dict(model)
        if missing := sorted(wanted - known):
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            raise CannotRestore(f"it does not hold {', '.join(missing[:_NAMED])}{more}", fix="")
