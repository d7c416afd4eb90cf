"""Fast-forward a loader's iterator: start the pass with the same generators, and draw what was already used.

By default batches are drawn and dropped, so that the workers' generators and random augmentation are the same. Where samples
cannot depend on earlier ones, only the sampler advances and nothing is loaded.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset, TensorDataset, default_collate, default_convert
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from holdfast.state.generators import LoaderGenerators
from holdfast.state.values import Tree

_DETERMINISTIC = (TensorDataset, list, tuple, range, torch.Tensor, np.ndarray)  # an index always gives the same sample
_MAX_INDICES = 64  # of a batch that are compared
active = False  # while batches are drawn and dropped


def begin_pass(
    loader: Any, generators: LoaderGenerators, begin: Tree, *, count: int, skips: bool, first_ever: bool
) -> tuple[Any, BatchCheck, int | None]:
    """An iterator `count` batches into its pass, its check, and the fingerprint of the last batch."""
    global active
    active = True
    try:
        generators.set(begin)
        if not first_ever and _keeps_workers(loader) and loader._iterator is None:
            iter(loader)  # persistent workers: their seed was drawn before this pass
            generators.set(begin)
        if skips:
            iterator = _skipping_iterator(loader, count)
            return iterator, BatchCheck(loader, iterator), None
        iterator = iter(loader)
        check = BatchCheck(loader, iterator)
        for _ in range(count):
            next(iterator)
        return iterator, check, check.fingerprint()
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
    if kind is Subset:
        return _is_deterministic(dataset.dataset)
    if kind is ConcatDataset:
        return all(map(_is_deterministic, dataset.datasets))
    if kind is StackDataset:
        parts = dataset.datasets
        return all(map(_is_deterministic, parts.values() if isinstance(parts, dict) else parts))
    return kind in _DETERMINISTIC


def _keeps_workers(loader: Any) -> bool:
    return isinstance(loader, DataLoader) and loader.persistent_workers and loader.num_workers > 0


def keeps_generators(loader: Any) -> bool:
    """Whether workers persist across passes and may draw random numbers."""
    return _keeps_workers(loader) and not is_deterministic(loader)


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
        "sampler": type(getattr(loader, "sampler", None)).__name__,
    }


def _is_stream(loader: Any) -> bool:
    return getattr(loader, "_dataset_kind", None) == _DatasetKind.Iterable or isinstance(loader, _BaseDataLoaderIter)


def _length(obj: Any) -> int | None:
    if hasattr(type(obj), "__len__"):
        with contextlib.suppress(Exception):  # many types raise for an unknown length
            return len(obj)
    return None


class BatchCheck:
    """Recognises the last batch by the sampler's indices, to tell whether a pass was repeated exactly."""

    def __init__(self, loader: Any, iterator: Any) -> None:
        self._indices: Any = None
        if can_skip(loader) and isinstance(iterator, _BaseDataLoaderIter):
            iterator._sampler_iter = self._record(iterator._sampler_iter)

    def fingerprint(self) -> int | None:
        """A checksum of the last indices; None where they are not known."""
        indices = self._indices
        if indices is None:
            return None
        return zlib.crc32(repr(indices[:_MAX_INDICES] if isinstance(indices, (list, tuple)) else indices).encode())

    def _record(self, entries: Iterator[Any]) -> Iterator[Any]:
        for self._indices in entries:
            yield self._indices
