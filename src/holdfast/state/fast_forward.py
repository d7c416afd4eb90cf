"""Fast-forward a loader's iterator: start the pass with the same generators, and draw what was already used.

By default batches are drawn and dropped, so that the workers' generators and random augmentation are the same. Where samples
cannot depend on earlier ones, only the sampler advances and nothing is loaded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset, TensorDataset, default_collate, default_convert
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from holdfast.state.generators import LoaderGenerators
from holdfast.state.values import Tree

_DETERMINISTIC = (TensorDataset, list, tuple, range, torch.Tensor, np.ndarray)  # an index always gives the same sample
active = False  # while batches are drawn and dropped


def begin_pass(loader: Any, generators: LoaderGenerators, begin: Tree, *, count: int, skips: bool, first_ever: bool) -> Any:
    """An iterator `count` batches into its pass. Raises StopIteration if the pass is shorter."""
    global active
    active = True
    try:
        generators.set(begin)
        if not first_ever and keeps_workers(loader) and loader._iterator is None:
            iter(loader)  # persistent workers: their seed was drawn before this pass
            generators.set(begin)
        if skips:
            return _skipping_iterator(loader, count)
        iterator = iter(loader)
        for _ in range(count):
            next(iterator)
        return iterator
    finally:
        active = False


def can_skip(loader: Any) -> bool:
    """Whether the sampler of a loader can advance without loading."""
    standard = isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__
    return standard and loader._dataset_kind == _DatasetKind.Map


def is_deterministic(loader: Any) -> bool:
    """Whether samples are certain not to depend on those drawn before."""
    return can_skip(loader) and loader.collate_fn in (default_collate, default_convert) and _is_deterministic(loader.dataset)


def _is_deterministic(dataset: Any) -> bool:
    kind = type(dataset)
    parts = [dataset.dataset] if kind is Subset else dataset.datasets if kind in (ConcatDataset, StackDataset) else None
    if parts is None:
        return kind in _DETERMINISTIC
    return all(map(_is_deterministic, parts.values() if isinstance(parts, dict) else parts))


def keeps_workers(loader: Any) -> bool:
    """Whether workers persist across passes."""
    return isinstance(loader, DataLoader) and loader.persistent_workers and loader.num_workers > 0


class _SkippingSampler:
    """A sampler without its first entries; draws lazily."""

    def __init__(self, sampler: Any, count: int) -> None:
        self._sampler, self._count = sampler, count

    def __iter__(self) -> Iterator[Any]:
        entries = iter(self._sampler)
        for _ in range(self._count):
            next(entries, None)
        yield from entries

    def __len__(self) -> int:
        return len(self._sampler)


def _skipping_iterator(loader: Any, count: int) -> Any:
    """The loader's iterator with a sampler that skips entries; later passes use the loader's own sampler."""
    if loader.num_workers == 0:  # its sampler is lazy, and by then the generators have their later states
        iterator: Any = iter(loader)
        for _ in range(count):
            iterator._next_index()
        iterator._num_yielded = count
        return iterator
    name = "batch_sampler" if loader._auto_collation else "sampler"
    own, kept = getattr(loader, name), loader._iterator
    object.__setattr__(loader, name, _SkippingSampler(own, count))  # DataLoader forbids the assignment: workers would not see it
    try:
        if kept is not None:
            kept._index_sampler = getattr(loader, name)
        iterator = iter(loader)
    finally:
        object.__setattr__(loader, name, own)
    iterator._index_sampler, iterator._num_yielded = own, count
    return iterator


def describe(loader: Any) -> Tree:
    """The properties of a loader that decide its batches."""
    dataset = getattr(loader, "dataset", None)
    return {
        "kind": type(loader).__qualname__,
        "data set": None if dataset is None else type(dataset).__qualname__,
        "samples": _length(dataset),
        "batches": None if _is_stream(loader) else _length(loader),  # len() of an iterable DataLoader makes it warn later
        "batch size": getattr(loader, "batch_size", None),
        "workers": getattr(loader, "num_workers", 0),
        "sampler": _sampler_kind(getattr(loader, "sampler", None)),
    }


def _sampler_kind(sampler: Any) -> str:
    """Its type; `splits_common_order` says that the ranks share one order as with a DistributedSampler."""
    return "DistributedSampler" if getattr(sampler, "splits_common_order", False) else type(sampler).__name__


def _is_stream(loader: Any) -> bool:
    return getattr(loader, "_dataset_kind", None) == _DatasetKind.Iterable or isinstance(loader, _BaseDataLoaderIter)


def _length(obj: Any) -> int | None:
    if hasattr(type(obj), "__len__"):
        with contextlib.suppress(Exception):  # many types raise for an unknown length
            return len(obj)
    return None
