"""Which checkpoints stay: the last few, some epochs, the best. What goes, goes after a newer one was verified.

Of those that Holdfast makes by itself the newest two stay, and older ones at growing distances: a fault that is seen late has
a clean ancestor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoints.manifest import Kept, kept_in
from holdfast.checkpoints.spare import remove
from holdfast.checkpoints.write import best_checkpoint, sync_folder

_MAX_AGE, _MAX_AGE_STEPS = 32, 1600  # intervals, or steps if that is more


def retain(
    parent: Path, *, verified: Path, keep_last: int = 3, every_epochs: int | None = None, made_by: str | None = None,
    spread: bool = False,
) -> list[Path]:  # fmt: skip
    """Remove what need not stay and is older than `verified`, which was read back whole; returns what was removed.

    With `made_by` only what was made by that is counted and removed: who saves often does not push out what others saved.
    With `spread`, `keep_last` stay that are not all of the last ones: see `spread_out`.
    """
    all_of_them = kept_in(parent)
    newest = next((kept for kept in all_of_them if kept.path == verified), None)
    if newest is None:
        return []
    own = [kept for kept in all_of_them if made_by is None or kept.manifest.get("made_by") == made_by]
    wanted = spread_out(own, keep_last) if spread else to_keep(own, keep_last=keep_last, every_epochs=every_epochs)
    stay = {kept.path for kept in wanted} | {best_checkpoint(parent)}
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


def spread_out(kept: Sequence[Kept], count: int) -> list[Kept]:
    """The newest two of some checkpoints, the oldest first, and others that reach further back, `count` in all."""
    older, newest = list(kept[:-2]), list(kept[-2:])
    every = max(1, newest[-1].step - newest[0].step)
    while len(older) > max(0, count - len(newest)):
        undone = [one.step for one in older if one.step > newest[-1].step]  # by a roll-back since
        goes = undone[0] if undone else step_to_drop([one.step for one in older], newest[-1].step, every=every)
        older.remove(next(one for one in older if one.step == goes))
    return [*older, *newest[-count:]]


def step_to_drop(steps: Sequence[int], new: int, *, every: int) -> int | None:
    """The step whose snapshot is dropped for a new one; None if there is none.

    The one that leaves the smallest gap relative to its age is dropped, so that older ones are further apart: with five
    snapshots of every 50th step the ages are about 0, 1, 4, 10 and 20 intervals. One older than 32 of these, or 1,600 steps if
    that is more, is dropped first.
    """
    ages = sorted(((new - step) / max(1, every), step) for step in steps)
    if len(ages) < 2 or ages[-1][0] > max(_MAX_AGE, _MAX_AGE_STEPS / max(1, every)):
        return ages[-1][1] if ages else None
    younger = (0.0, *(age for age, _ in ages))
    gaps = [(older + 1) / (younger[i] + 1) for i, (older, _) in enumerate(ages[1:])]
    return ages[gaps.index(min(gaps))][1]
