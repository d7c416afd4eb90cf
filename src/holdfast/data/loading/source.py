"""From what the user named to a loader that can be made again with other settings: their own, or data that Holdfast reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from holdfast.data.columns import ROWS, Chunk, TableSet, chunks_of
from holdfast.data.formats.detect import Settings, is_factory, open_data
from holdfast.data.formats.text import TextSet
from holdfast.data.formats.torch_dataset import by_split, made_by
from holdfast.data.listing import read_bytes
from holdfast.data.loading.setting import Loader, Setting
from holdfast.data.pixels import opened as opened_image
from holdfast.data.samples import ImageSet
from holdfast.errors import UsageError

SIDE = 224
_BATCH, _ROWS = 32, 1024  # samples, or rows of a table, of a batch
_LARGEST = 1 << 30
_CHUNKS = ("chunk_size", "chunk_rows", "chunk")  # attributes of data sets that read so many rows at once


def opened(target: str, options: dict[str, Any]) -> Source:
    """The loader. `options`: format, tree, batch, also."""
    batch = options.get("batch")
    also = tuple(Path(path) for path in options.get("also", ()))
    settings = Settings(format=options.get("format"), tree=options.get("tree"), also=also)
    if is_factory(target, settings):
        return Source(made_by(target), batch)
    data = open_data(target, settings)
    if isinstance(data, ImageSet):
        return Source(Images(data), batch)
    if isinstance(data, TextSet):
        fix = "give the loader of your training: holdfast validate package.module:factory --benchmark"
        raise UsageError("text is not loaded by samples here", fix=fix)
    return Source(Rows(data, batch or _ROWS), batch)


class Images(Dataset[Tensor]):
    """The images of a set. So many `pool_threads` read and decode a batch together: Pillow lets them."""

    read_by_holdfast = f"images, read by Holdfast itself as RGB of {SIDE} × {SIDE}"

    def __init__(self, data: ImageSet) -> None:
        self._paths = [str(data.path_of(entry)) for entry in data.entries]
        self.pool_threads = 1
        self._pool: ThreadPoolExecutor | None = None
        self._size = 0

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, place: int) -> Tensor:
        image = opened_image(read_bytes(self._paths[place], limit=_LARGEST))
        image.load()
        return prepared(image)

    def __getitems__(self, places: list[int]) -> list[Tensor]:
        """A batch at once, as torch asks for it."""
        if self.pool_threads <= 1:
            return [self[place] for place in places]
        if self._pool is None or self._size != self.pool_threads:
            self._pool, self._size = ThreadPoolExecutor(self.pool_threads), self.pool_threads
        return list(self._pool.map(self.__getitem__, places))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None, "_size": 0}


def prepared(image: Any) -> Tensor:
    """What a training would do at least: RGB, one size, numbers in the order of torch."""
    pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE)))
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy()).float().div_(255)


class Rows(IterableDataset[Tensor]):
    """The numbers of a table, `batch` rows at a time out of chunks of `chunk` rows, mixed; of a jagged column its lengths.

    Workers share out the files; where those are fewer than workers, each reads all of it and keeps every n-th chunk.
    """

    read_by_holdfast = "rows, read by Holdfast itself"

    def __init__(self, data: TableSet, batch: int) -> None:
        if not data.parts:
            said = f": {data.faults[0].file}: {data.faults[0].detail}" if data.faults else ""
            raise UsageError(f"{data.root} holds nothing to read{said}", fix="name a file, or another --format")
        self._parts = data.parts
        self.batch, self.chunk = batch, ROWS

    def as_loader(self) -> DataLoader[Tensor]:
        """As it is loaded when nothing else is said."""
        return DataLoader(self, batch_size=None)

    def __iter__(self) -> Iterator[Tensor]:
        for chunk in self._chunks():
            yield from self._batches(chunk)

    def _chunks(self) -> Iterator[Chunk]:
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        by_part = len(self._parts) >= count
        place = 0
        for at, part in enumerate(self._parts):
            if by_part and at % count != number:
                continue
            reader = part.chunks()
            while (chunk := following(reader, self.chunk)) is not None:
                if by_part or place % count == number:
                    yield chunk
                place += 1

    def _batches(self, chunk: Chunk) -> Iterator[Tensor]:
        values = [column.values if column.counts is None else column.counts for column in chunk.values()]
        columns = [one.reshape(len(one), -1) for one in values if one.dtype.kind in "iufb"]
        if not columns:
            return
        rows = np.concatenate(columns, axis=1, dtype=np.float32, casting="unsafe")
        order = np.random.default_rng(0).permutation(len(rows))
        for start in range(0, len(rows), self.batch):
            yield torch.from_numpy(rows[order[start : start + self.batch]])


def following(reader: Iterator[Chunk], rows: int) -> Chunk | None:
    """The next chunk of about so many rows, or None at the end."""
    with chunks_of(rows):
        return next(reader, None)


class Batches:
    """The user's batches of indices, over and over, cut where they would take too long; `given` is what was handed out."""

    def __init__(self, inner: Any, cut: int | None, *, whole: bool) -> None:
        self._inner, self._cut, self._whole = inner, cut, whole
        self.given: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        while True:
            before = len(self.given)
            for batch in self._inner:
                yield from self._pieces(batch)
            if len(self.given) == before:
                return

    def _pieces(self, batch: Any) -> Iterator[Any]:
        indices = [batch] if self._whole else list(batch)
        pieces = -(-len(indices) // (self._cut or len(indices) or 1)) or 1
        size = -(-len(indices) // pieces)
        for start in range(0, len(indices), max(1, size)):  # of one size: a rest would make one worker look quick
            self.given.append(batch if self._whole else indices[start : start + size])
            yield self.given[-1]


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
        self.own_reading = hasattr(made, "read_by_holdfast")
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
        if self.ready_made and not self.own_reading:
            self.notes.append("batch_size=None: each item of the data set counts as one sample")

    @property
    def ready_made(self) -> bool:
        """Whether what the data set gives are batches already."""
        return self.whole or (self.stream and self.loader.batch_size is None)

    @property
    def chunk_name(self) -> str:
        """The attribute of the data set that says how many rows are read at once; empty where it has none."""
        own = getattr(self.dataset, "__dict__", {})
        return next((name for name in _CHUNKS if type(own.get(name)) is int and own[name] > 0), "")

    def count(self, batch: Any, indices: Any = None) -> int:
        """Samples of a batch. An item of a data set that is not batched by the loader counts as one."""
        if isinstance(indices, (list, tuple)):
            return len(indices)
        if self.ready_made:
            return samples_in(batch) if self.own_reading else 1
        return min(samples_in(batch), self.batch or 1)

    @property
    def batch(self) -> int | None:
        """Samples of a batch, where that is known."""
        size = self.loader.batch_size
        if size is None and self.loader.batch_sampler is not None:
            size = getattr(self.loader.batch_sampler, "batch_size", None)
        return int(size) if isinstance(size, int) else self.dataset.batch if self.own_reading else None

    def described(self) -> Loader:
        """What it is, in facts."""
        loader = self.loader
        own = Setting(
            workers=loader.num_workers, prefetch=loader.prefetch_factor, pin=bool(loader.pin_memory),
            chunk=getattr(self.dataset, self.chunk_name) if self.chunk_name else None,
        )  # fmt: skip
        kind = type(loader).__name__ if self.given_loader else type(self.dataset).__name__
        kind = self.dataset.read_by_holdfast if self.own_reading else kind
        samples = None if self.stream or not hasattr(self.dataset, "__len__") else len(self.dataset)
        return Loader(
            kind=kind, own=own, batch=self.batch, samples=samples, cuda=card(), notes=tuple(self.notes),
            pool=hasattr(self.dataset, "pool_threads"), own_reading=self.own_reading, chunk_name=self.chunk_name,
        )  # fmt: skip

    def made_with(self, setting: Setting, cut: int | None) -> tuple[Any, Batches | None]:
        """A DataLoader with these settings, and the batches that it draws from."""
        own = self.loader
        if setting.chunk is not None and self.chunk_name:
            setattr(self.dataset, self.chunk_name, setting.chunk)
        if hasattr(self.dataset, "pool_threads"):
            self.dataset.pool_threads = setting.threads or 1
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
    if hasattr(dataset, "as_loader"):
        return dataset.as_loader()
    if isinstance(dataset, IterableDataset):
        return DataLoader(dataset, batch_size=batch or _BATCH)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UsageError(
            f"the factory returned {type(dataset).__name__}, which is no DataLoader and no Dataset",
            fix="return a torch.utils.data.DataLoader, or a Dataset with __len__ and __getitem__",
        )
    if not len(dataset):
        raise UsageError("the data set is empty", fix="look at what the factory returns: its length is 0")
    return DataLoader(dataset, batch_size=batch or _BATCH, shuffle=True)
