"""Snapshots on disk: written as checkpoints that anyone can use, read back, and restored from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoints.manifest import kept_in, read_manifest
from holdfast.checkpoints.read import read_checkpoint, verify_checkpoint
from holdfast.checkpoints.retain import retain
from holdfast.checkpoints.write import mark_best, write_checkpoint
from holdfast.errors import CannotRestore, HoldfastError
from holdfast.inside.saving.parts import from_parts
from holdfast.inside.saving.telling import Telling
from holdfast.inside.snapshots.reading import Tree
from holdfast.inside.snapshots.snapshot import Snapshot

MADE_BY = "guard"  # who saved it: others do not remove it
PutBack = Callable[[Tree, list[torch.Tensor]], None]


@dataclass(frozen=True, slots=True)
class ToDisk:
    """Writes snapshots; what `facts` gives goes into the manifest. Without `telling`, what fails is raised."""

    facts: Callable[[], Mapping[str, Any]]
    telling: Telling | None = None

    def write(self, snapshot: Snapshot, parent: Path, *, keep: int, best: float | None) -> None:
        """Write a clean snapshot, unless that was done before; then let older ones go."""
        try:
            if snapshot.path is None or snapshot.path.parent != parent or read_manifest(snapshot.path) is None:
                parts, size = snapshot.parts(), snapshot.block.size
                snapshot.path = write_checkpoint(parent, snapshot.step, parts, size=size, made_by=MADE_BY, **self.facts())
            verify_checkpoint(snapshot.path, from_disk=True)
            read_checkpoint(snapshot.path, verify=False)
            if best is not None:
                mark_best(snapshot.path, best)
            retain(parent, verified=snapshot.path, keep_last=keep, made_by=MADE_BY)
        except (HoldfastError, OSError) as error:
            if self.telling is None:
                raise
            self.telling.failed(error, snapshot.step)
            return
        if self.telling is not None:
            self.telling.saved(snapshot.path, snapshot.step, by=MADE_BY)


def restore_newest(folder: Path, put_back: PutBack, *, at_or_before: int | None = None) -> int | None:
    """Restore the newest whole checkpoint in a folder and return its step; None if there is none."""
    for kept in reversed(kept_in(folder)):
        if at_or_before is not None and kept.step > at_or_before:
            continue
        try:
            load(kept.path, put_back)
        except CannotRestore:
            raise
        except HoldfastError:  # torn: an older one may be whole
            continue
        return kept.step
    return None


def load(path: Path, put_back: PutBack) -> None:
    """Restore one checkpoint, of either format. Raises StorageError or CannotRestore, with nothing changed."""
    put_back(*from_parts(read_checkpoint(path)))
