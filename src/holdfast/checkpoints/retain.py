"""Which checkpoints stay: the last few, some epochs, the best. What goes, goes after a newer one was verified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoints.manifest import Kept, kept_in
from holdfast.checkpoints.spare import remove
from holdfast.checkpoints.write import best_checkpoint, sync_folder


def retain(
    parent: Path, *, verified: Path, keep_last: int = 3, every_epochs: int | None = None, made_by: str | None = None
) -> list[Path]:
    """Remove what need not stay and is older than `verified`, which was read back whole; returns what was removed.

    With `made_by` only what was made by that is counted and removed: who saves often does not push out what others saved.
    """
    all_of_them = kept_in(parent)
    newest = next((kept for kept in all_of_them if kept.path == verified), None)
    if newest is None:
        return []
    own = [kept for kept in all_of_them if made_by is None or kept.manifest.get("made_by") == made_by]
    stay = {kept.path for kept in to_keep(own, keep_last=keep_last, every_epochs=every_epochs)} | {best_checkpoint(parent)}
    removed = [kept.path for kept in own if kept.path not in stay and kept.age < newest.age]
    for path in removed:
        remove(path)
    if removed:
        sync_folder(parent)
    return removed


def to_keep(kept: Sequence[Kept], *, keep_last: int, every_epochs: int | None) -> list[Kept]:
    """Of some checkpoints, the oldest first: the last ones, and the last of every epoch that is a multiple of `every_epochs`."""
    stay = list(kept[-keep_last:])
    if every_epochs:
        last_of = {
            checkpoint.epoch: checkpoint for checkpoint in kept if checkpoint.epoch and checkpoint.epoch % every_epochs == 0
        }
        stay += last_of.values()
    return stay


def best_of(kept: Sequence[Kept], metric: str, *, lower_is_better: bool) -> Kept | None:
    """The one with the best value of a metric; of two with the same, the older. NaN is never the best."""
    sign = 1.0 if lower_is_better else -1.0
    scored = [
        (sign * value, checkpoint.age, checkpoint)
        for checkpoint in kept
        if math.isfinite(value := checkpoint.metrics.get(metric, math.nan))
    ]
    return min(scored, key=lambda entry: entry[:2])[2] if scored else None
