"""Get a loader's iterator to where it was: begin the pass with the same generators, and go past what was already used.

By default batches are drawn and thrown away: workers then have drawn what they had drawn, and what they make up at random
comes out the same. Where samples cannot depend on what was drawn before, the sampler alone is moved and nothing is loaded.
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

from holdfast.inside.saving.generators import Origins, Plain

_BY_VALUE = (TensorDataset, list, tuple, range, torch.Tensor, np.ndarray)  # the same index gives the same sample, always
_LOOKED_AT = 32  # numbers of a tensor that go into a batch's fingerprint
_LEAVES = 8  # tensors of a batch that do
_INDICES = 64  # of a batch that are compared
under_way = False  # while batches are drawn to be thrown away: they are no training


def begin_pass(
    loader: Any, origins: Origins, begin: Plain, *, count: int, skips: bool, first_ever: bool
) -> tuple[Any, Witness, int | None]:
    """An iterator that has left `count` batches behind, its witness, and what that says about the last of those."""
    global under_way
    under_way = True
    try:
        origins.set(begin)
        if not first_ever and _keeps_workers(loader) and loader._iterator is None:
            iter(loader)  # these workers were there before this pass: the draw of their seed was not part of it
            origins.set(begin)
        if skips:
            iterator = _skipping_iterator(loader, count)
            return iterator, Witness(loader, iterator), None
        iterator, batch = iter(loader), None
        witness = Witness(loader, iterator)
        for _ in range(count):
            batch = next(iterator)
        return iterator, witness, witness.about(batch) if count else None
    finally:
        under_way = False


def can_skip(loader: Any) -> bool:
    """Whether the sampler of a loader can be moved without loading anything."""
    ours = isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__
    return ours and loader._dataset_kind == _DatasetKind.Map


def is_by_value(loader: Any) -> bool:
    """Whether samples cannot depend on which ones were drawn before, for certain."""
    return can_skip(loader) and loader.collate_fn in (default_collate, default_convert) and _by_value(loader.dataset)


def _by_value(dataset: Any) -> bool:
    kind = type(dataset)
    if kind is Subset:
        return _by_value(dataset.dataset)
    if kind is ConcatDataset:
        return all(map(_by_value, dataset.datasets))
    if kind is StackDataset:
        parts = dataset.datasets
        return all(map(_by_value, parts.values() if isinstance(parts, dict) else parts))
    return kind in _BY_VALUE


def _keeps_workers(loader: Any) -> bool:
    return isinstance(loader, DataLoader) and loader.persistent_workers and loader.num_workers > 0


def keeps_generators(loader: Any) -> bool:
    """Whether workers live on from pass to pass, and make samples that may be random."""
    return _keeps_workers(loader) and not is_by_value(loader)


class _Skipping:
    """A sampler without its first entries; nothing is drawn before it is asked."""

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
    """The loader's iterator, begun with a sampler that leaves entries out. Later passes have the loader's own again."""
    if loader.num_workers == 0:  # it asks its sampler when a batch is wanted: by then the generators are set to later
        iterator: Any = iter(loader)
        for _ in range(count):
            iterator._next_index()
        iterator._num_yielded = count
        return iterator
    name = "batch_sampler" if loader._auto_collation else "sampler"
    own, kept = getattr(loader, name), loader._iterator
    object.__setattr__(loader, name, _Skipping(own, count))  # the loader refuses, as workers would not see it: here they do
    try:
        if kept is not None:
            kept._index_sampler = getattr(loader, name)
        iterator = iter(loader)
    finally:
        object.__setattr__(loader, name, own)
    iterator._index_sampler, iterator._num_yielded = own, count
    return iterator


def describe(loader: Any) -> Plain:
    """What a loader is, as far as it decides what comes when."""
    dataset = getattr(loader, "dataset", None)
    return {
        "kind": type(loader).__qualname__,
        "data set": None if dataset is None else type(dataset).__qualname__,
        "samples": _length(dataset),
        "batches": None if _is_stream(loader) else _length(loader),  # asking torch's loader has it complain later
        "batch size": getattr(loader, "batch_size", None),
        "workers": getattr(loader, "num_workers", 0),
        "sampler": type(getattr(loader, "sampler", None)).__name__,
    }


def _is_stream(loader: Any) -> bool:
    return getattr(loader, "_dataset_kind", None) == _DatasetKind.Iterable or isinstance(loader, _BaseDataLoaderIter)


def _length(thing: Any) -> int | None:
    if hasattr(type(thing), "__len__"):
        with contextlib.suppress(Exception):  # a length that is not known is told in many ways
            return len(thing)
    return None


class Witness:
    """Knows one batch again, to tell whether a pass came out as it did the first time.

    With workers by its values, which depend on nothing in this process. Without, by the samples that the sampler chose: their
    values may be random, and what was drawn for those that are thrown away does not matter. None where neither is known.
    """

    def __init__(self, loader: Any, iterator: Any) -> None:
        self._by_values = isinstance(loader, DataLoader) and loader.num_workers > 0 and getattr(loader, "in_order", True)
        self._chosen: Any = None
        if not self._by_values and can_skip(loader) and isinstance(iterator, _BaseDataLoaderIter):
            iterator._sampler_iter = self._listen(iterator._sampler_iter)

    def about(self, batch: Any) -> int | None:
        """A number for the batch that was drawn last."""
        if self._by_values:
            return fingerprint(batch)
        chosen = self._chosen
        if chosen is None:
            return None
        return zlib.crc32(repr(chosen[:_INDICES] if isinstance(chosen, (list, tuple)) else chosen).encode())

    def _listen(self, entries: Iterator[Any]) -> Iterator[Any]:
        for self._chosen in entries:
            yield self._chosen


def fingerprint(batch: Any) -> int:
    """A checksum of a few numbers of a batch: the same samples, made up in the same way, have the same."""
    checksum, left = 0, _LEAVES
    waiting = [batch]
    while waiting and left:
        thing = waiting.pop()
        if isinstance(thing, (list, tuple)):
            waiting.extend(thing[:_LEAVES])
        elif isinstance(thing, dict):
            waiting.extend(list(thing.values())[:_LEAVES])
        else:
            left -= 1
            checksum = zlib.crc32(_some_of(thing), checksum)
    return checksum


def _some_of(thing: Any) -> bytes:
    if isinstance(thing, torch.Tensor):
        if not thing.is_cpu or thing.layout is not torch.strided or thing.is_quantized:
            return b"?"
        flat = thing.detach()
        count = flat.numel()
        if not flat.is_contiguous():
            flat = flat.take(torch.arange(0, count, max(1, count // _LOOKED_AT)))
        thing = (flat.view(torch.int16) if flat.dtype is torch.bfloat16 else flat).numpy()
    if isinstance(thing, np.ndarray) and thing.dtype.kind in "biufc":
        return thing.reshape(-1)[:: max(1, thing.size // _LOOKED_AT)][:_LOOKED_AT].tobytes()
    return repr(thing).encode() if isinstance(thing, (str, bytes, int, float, bool)) else b"?"
