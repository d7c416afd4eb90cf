"""From the factory that the user named to a loader that can be made again with other settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from holdfast.data.formats.torch_dataset import by_split, is_factory, made_by
from holdfast.errors import UsageError
from holdfast.loading.setting import Loader, Setting

_BATCH = 32


def opened(target: str, batch: int | None) -> Source:
    """The loader that a factory makes; of a `Dataset` one with batches of this size."""
    if not is_factory(target):
        fix = "give the loader of your training: holdfast validate package.module:factory --benchmark"
        raise UsageError(f"{target} is not code that makes a loader", fix=fix)
    return Source(made_by(target), batch)


class Batches:
    """The user's batches of indices, over and over, cut where they would take too long; `drawn` holds those handed out."""

    def __init__(self, inner: Any, cut: int | None, *, whole: bool) -> None:
        self._inner, self._cut, self._whole = inner, cut, whole
        self.drawn: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        while True:
            before = len(self.drawn)
            for batch in self._inner:
                yield from self._pieces(batch)
            if len(self.drawn) == before:
                return

    def _pieces(self, batch: Any) -> Iterator[Any]:
        indices = [batch] if self._whole else list(batch)
        pieces = -(-len(indices) // (self._cut or len(indices) or 1)) or 1
        size = -(-len(indices) // pieces)
        for start in range(0, len(indices), max(1, size)):  # of one size: a rest would make one worker look quick
            self.drawn.append(batch if self._whole else indices[start : start + size])
            yield self.drawn[-1]


class Threads:
    """What a worker does first: the user's own `worker_init_fn`, then as many threads as are tried."""

    def __init__(self, inner: Any, threads: int | None) -> None:
        self.inner, self.threads = inner, threads

    def __call__(self, worker: int) -> None:
        """In the worker."""
        if self.inner is not None:
            self.inner(worker)
        set_threads(self.threads)


def card() -> str:
    """The name of the card that batches can be moved to; empty where there is none, or none with room."""
    try:
        return str(torch.cuda.get_device_name(torch.zeros(1, device="cuda").device)) if torch.cuda.is_available() else ""
    except RuntimeError:
        return ""


def set_threads(threads: int | None) -> None:
    """How many threads torch, and OpenCV where it is loaded, take for one call."""
    if threads is not None:
        torch.set_num_threads(threads)
        if "cv2" in sys.modules:
            sys.modules["cv2"].setNumThreads(threads)


class Source:
    """A loader that can be made again. `indices` are its batches of indices; a stream has none."""

    def __init__(self, made: Any, batch: int | None) -> None:
        self.notes: list[str] = []
        if isinstance(made, (dict, tuple, list)):
            split, made = next(by_split(made), ("", None))
            if not split:
                raise UsageError("the factory returned nothing to load", fix="return a torch.utils.data.DataLoader or a Dataset")
            self.notes.append(f"several data sets: {split} was measured")
        self.given_loader = isinstance(made, DataLoader)
        self.loader: Any = made if self.given_loader else _loader_for(made, batch)
        if self.given_loader and type(made) is not DataLoader:
            self.notes.append(f"{type(made).__name__} was measured as a plain DataLoader with its parts")
        self.dataset: Any = self.loader.dataset
        self.stream = isinstance(self.dataset, IterableDataset)
        self.whole = self.loader.batch_sampler is None and not self.stream
        self.indices: Any = None if self.stream else self.loader.sampler if self.whole else self.loader.batch_sampler
        self.collate: Any = self.loader.collate_fn
        if self.ready_made:
            self.notes.append("batch_size=None: each item of the data set counts as one sample")

    @property
    def ready_made(self) -> bool:
        """Whether what the data set gives are batches already."""
        return self.whole or (self.stream and self.loader.batch_size is None)

    def count(self, batch: Any, indices: Any = None) -> int:
        """Samples of a batch. An item of a data set that is not batched by the loader counts as one."""
        if isinstance(indices, (list, tuple)):
            return len(indices)
        if self.ready_made:
            return 1
        return min(samples_in(batch), self.batch or 1)

    @property
    def batch(self) -> int | None:
        """Samples of a batch, where that is known."""
        size = self.loader.batch_size
        if size is None and self.loader.batch_sampler is not None:
            size = getattr(self.loader.batch_sampler, "batch_size", None)
        return int(size) if isinstance(size, int) else None

    def described(self) -> Loader:
        """What it is, in facts."""
        loader = self.loader
        own = Setting(workers=loader.num_workers, prefetch=loader.prefetch_factor, pin=bool(loader.pin_memory))
        kind = type(loader).__name__ if self.given_loader else type(self.dataset).__name__
        samples = None if self.stream or not hasattr(self.dataset, "__len__") else len(self.dataset)
        return Loader(kind=kind, own=own, batch=self.batch, samples=samples, cuda=card(), notes=tuple(self.notes))

    def made_with(self, setting: Setting, cut: int | None) -> tuple[Any, Batches | None]:
        """A DataLoader with these settings, and the batches that it draws from."""
        own = self.loader
        how: dict[str, Any] = {
            "num_workers": setting.workers, "collate_fn": self.collate, "pin_memory": setting.pin, "generator": own.generator,
            "worker_init_fn": Threads(own.worker_init_fn, setting.threads),
        }  # fmt: skip
        if setting.workers:
            how |= {"prefetch_factor": setting.prefetch, "persistent_workers": True}
            how["multiprocessing_context"] = own.multiprocessing_context
        if self.stream:
            size = own.batch_size if cut is None or own.batch_size is None else min(cut, own.batch_size)
            return DataLoader(self.dataset, batch_size=size, drop_last=own.drop_last, **how), None
        batches = Batches(self.indices, cut, whole=self.whole)
        if self.whole:
            return DataLoader(self.dataset, batch_size=None, sampler=batches, **how), batches
        return DataLoader(self.dataset, batch_sampler=batches, **how), batches


def samples_in(batch: Any) -> int:
    """Samples of a batch: the length of the first thing in it that has one."""
    while isinstance(batch, (dict, tuple, list)) and batch:
        first = next(iter(batch.values() if isinstance(batch, dict) else batch))
        if not isinstance(first, (dict, tuple, list)) and not getattr(first, "shape", ()):
            return len(batch) if isinstance(batch, list) else 1
        batch = first
    shape: tuple[int, ...] = getattr(batch, "shape", ())
    return int(shape[0]) if shape else 1


def _loader_for(dataset: Any, batch: int | None) -> Any:
    """A data set by itself, loaded as people begin: shuffled, without workers."""
    if isinstance(dataset, IterableDataset):
        return DataLoader(dataset, batch_size=batch or _BATCH)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UsageError(
            f"the factory returned {type(dataset).__name__}, which is neither a DataLoader nor a Dataset",
            fix="return a torch.utils.data.DataLoader, or a Dataset with __len__ and __getitem__",
        )
    if not len(dataset):
        raise UsageError("the data set is empty", fix="look at what the factory returns: its length is 0")
    return DataLoader(dataset, batch_size=batch or _BATCH, shuffle=True)
