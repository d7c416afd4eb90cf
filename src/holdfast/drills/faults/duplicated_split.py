"""What is held out was learned from: the split was made twice from the same list, or copies are on both sides."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from holdfast.drills.fault import CannotHappen, Expected, Fault, NotHere
from holdfast.drills.injection.context import FaultContext

_KEPT = 32  # batches
_APART = 7919  # a prime: samples of one held-out batch come from many


class DuplicatedSplit(Fault):
    """Each evaluation gets batches of the training data instead of its own."""

    code = "duplicated-split"
    description = "evaluations use samples of the training data"
    expected = Expected(findings=("split-leak", "too-good"), causes=("duplicates-across-splits",), info_is_enough=True)
    needs = ("loader", "evaluation")
    lasting = True
    from_start = True

    def __init__(self, strength: float | None = None) -> None:
        super().__init__(strength)
        self._kept: list[Any] = []
        self._next = 0

    def batch(self, batch: Any, context: FaultContext) -> Any:
        """Keep some; they stay as they are."""
        if len(self._kept) < _KEPT:
            self._kept.append(batch)
        return batch

    def held_out_batch(self, batch: Any, context: FaultContext) -> Any:
        """Samples out of all that were kept, as many as the batch has; where they cannot be mixed, whole batches."""
        if not self._kept:
            return batch
        if _parts(batch) != _parts(self._kept[0]):
            raise (NotHere if self._next else CannotHappen)("evaluations have batches of another build")
        self._next += 1
        try:
            return _mixed(self._kept, batch, self._next)
        except (TypeError, ValueError, RuntimeError, IndexError):
            return self._kept[self._next % len(self._kept)]


def _parts(batch: Any) -> Any:
    """The build of each of its parts: a list of tensors has as many in every batch."""
    is_row = isinstance(batch, list | tuple) and all(isinstance(part, torch.Tensor) for part in batch)
    return [_build(part) for part in batch] if is_row else _build(batch)


def _build(batch: Any) -> Any:
    """The kinds of its parts, and the shapes of its samples."""
    if isinstance(batch, dict):
        return {name: _build(part) for name, part in batch.items()}
    if isinstance(batch, torch.Tensor):
        return tuple(batch.shape[1:])
    return [_build(part) for part in batch[:1]] if isinstance(batch, list | tuple) else type(batch)


def _mixed(kept: list[Any], batch: Any, number: int) -> Any:
    """A batch of the same build, each sample of it taken from one of those that were kept."""
    wanted, build = tree_flatten(batch)
    parts = zip(*(tree_flatten(sample)[0] for sample in kept), strict=True)
    pools = [torch.cat(list(tensors)) for tensors in parts]
    places = (torch.arange(len(wanted[0])) * _APART + number) % len(pools[0])
    return tree_unflatten([pool[places] for pool in pools], build)
