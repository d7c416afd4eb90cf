"""Fast-forward a loader's iterator: begin the pass with the same generators, and draw what was already used.

By default batches are drawn and dropped: workers then have drawn what they had drawn, and random augmentation is the same.
Where samples cannot depend on what was drawn before, only the sampler is moved and nothing is loaded.
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

_DETERMINISTIC = (TensorDataset, list, tuple, range, torch.Tensor, np.ndarray)  # the same index gives the same sample, always
_MAX_VALUES = 32  # of a tensor that go into a batch's fingerprint
_MAX_TENSORS = 8  # of a batch that do
_MAX_INDICES = 64  # of a batch that are compared
active = False  # while batches are drawn and dropped: they are no training


def begin_pass(
    loader: Any, generators: LoaderGenerators, begin: Tree, *, count: int, skips: bool, first_ever: bool
) -> tuple[Any, BatchCheck, int | None]:
    """An iterator that is `count` batches into its pass, its check, and the fingerprint of the last of those."""
    global active
    active = True
    try:
        generators.set(begin)
        if not first_ever and _keeps_workers(loader) and loader._iterator is None:
            iter(loader)  # these workers were there before this pass: the draw of their seed was not part of it
            generators.set(begin)
        if skips:
            iterator = _skipping_iterator(loader, count)
            return iterator, BatchCheck(loader, iterator), None
        iterator, batch = iter(loader), None
        check = BatchCheck(loader, iterator)
        for _ in range(count):
            batch = next(iterator)
        return iterator, check, check.fingerprint(batch) if count else None
    finally:
        active = False


def can_skip(loader: Any) -> bool:
    """Whether the sampler of a loader can be moved without loading anything."""
    ours = isinstance(loader, DataLoader) and type(loader).__iter__ is DataLoader.__iter__
    return ours and loader._dataset_kind == _DatasetKind.Map


def is_deterministic(loader: Any) -> bool:
    """Whether samples cannot depend on which ones were drawn before, for certain."""
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
    """Whether workers live on from pass to pass, and make samples that may be random."""
    return _keeps_workers(loader) and not is_deterministic(loader)


class _SkippingSampler:
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
    """The loader's iterator, begun with a sampler that skips entries. Later passes have the loader's own again."""
    if loader.num_workers == 0:  # it asks its sampler when a batch is wanted: by then the generators are set to later
        iterator: Any = iter(loader)
        for _ in range(count):
            iterator._next_index()
        iterator._num_yielded = count
        return iterator
    name = "batch_sampler" if loader._auto_collation else "sampler"
    own, kept = getattr(loader, name), loader._iterator
    object.__setattr__(loader, name, _SkippingSampler(own, count))  # the loader itself refuses: its workers would not see it
    try:
        if kept is not None:
            kept._index_sampler = getattr(loader, name)
        iterator = iter(loader)
    finally:
        object.__setattr__(loader, name, own)
    iterator._index_sampler, iterator._num_yielded = own, count
    return iterator


def describe(loader: Any) -> Tree:
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
        with contextlib.suppress(Exception):  # an unknown length is raised in many ways
            return len(thing)
    return None


class BatchCheck:
    """Recognises one batch again, to tell whether a pass was repeated exactly.

    With workers by its values, which depend on nothing in this process. Without, by the indices of the sampler: the values may be
    random, and what was drawn for dropped batches does not matter. None where neither is known.
    """

    def __init__(self, loader: Any, iterator: Any) -> None:
        self._is_deterministics = isinstance(loader, DataLoader) and loader.num_workers > 0 and getattr(loader, "in_order", True)
        self._indices: Any = None
        if not self._is_deterministics and can_skip(loader) and isinstance(iterator, _BaseDataLoaderIter):
            iterator._sampler_iter = self._listen(iterator._sampler_iter)

    def fingerprint(self, batch: Any) -> int | None:
        """A checksum of the batch that was drawn last."""
        if self._is_deterministics:
            return fingerprint(batch)
        indices = self._indices
        if indices is None:
            return None
        return zlib.crc32(repr(indices[:_MAX_INDICES] if isinstance(indices, (list, tuple)) else indices).encode())

    def _listen(self, entries: Iterator[Any]) -> Iterator[Any]:
        for self._indices in entries:
            yield self._indices


def fingerprint(batch: Any) -> int:
    """A checksum of a few numbers of a batch: the same samples, made up in the same way, have the same."""
    checksum, left = 0, _MAX_TENSORS
    waiting = [batch]
    while waiting and left:
        thing = waiting.pop()
        if isinstance(thing, (list, tuple)):
            waiting.extend(thing[:_MAX_TENSORS])
        elif isinstance(thing, dict):
            waiting.extend(list(thing.values())[:_MAX_TENSORS])
        else:
            left -= 1
            checksum = zlib.crc32(_sample(thing), checksum)
    return checksum


def _sample(thing: Any) -> bytes:
    if isinstance(thing, torch.Tensor):
        if not thing.is_cpu or thing.layout is not torch.strided or thing.is_quantized:
            return b"?"
        flat = thing.detach()
        count = flat.numel()
        if not flat.is_contiguous():
            flat = flat.take(torch.arange(0, count, max(1, count // _MAX_VALUES)))
        thing = (flat.view(torch.int16) if flat.dtype is torch.bfloat16 else flat).numpy()
    if isinstance(thing, np.ndarray) and thing.dtype.kind in "biufc":
        return thing.reshape(-1)[:: max(1, thing.size // _MAX_VALUES)][:_MAX_VALUES].tobytes()
    return repr(thing).encode() if isinstance(thing, (str, bytes, int, float, bool)) else b"?"
