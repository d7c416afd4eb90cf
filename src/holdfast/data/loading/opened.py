"""From what the user named to a loader: a factory of theirs, or data that Holdfast reads by itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, from_numpy
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from holdfast.data.columns import ROWS, Chunk, TableSet, chunks_of
from holdfast.data.formats.detect import Settings, is_factory, open_data
from holdfast.data.formats.text import TextSet
from holdfast.data.formats.torch_dataset import made_by
from holdfast.data.listing import read_bytes
from holdfast.data.loading.source import Source
from holdfast.data.pixels import opened as opened_image
from holdfast.data.samples import ImageSet
from holdfast.errors import UsageError

# Images as a data set that Holdfast reads by itself, for who has no loader yet: decoded, made RGB, brought to one size.

SIDE = 224
_LARGEST = 1 << 30


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
    return from_numpy(pixels.transpose(2, 0, 1).copy()).float().div_(255)


# Tables, arrays and trees as a stream of batches that Holdfast reads by itself, so many rows at once.

BATCH = 1024


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
            yield from_numpy(rows[order[start : start + self.batch]])


def following(reader: Iterator[Chunk], rows: int) -> Chunk | None:
    """The next chunk of about so many rows, or None at the end."""
    with chunks_of(rows):
        return next(reader, None)


TEXT_FIX = "give the loader of your training: holdfast validate package.module:factory --benchmark"


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
        raise UsageError("text is not loaded by samples here", fix=TEXT_FIX)
    return Source(Rows(data, batch or BATCH), batch)
