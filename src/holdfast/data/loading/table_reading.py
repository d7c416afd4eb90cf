"""Tables, arrays and trees as a stream of batches that Holdfast reads by itself, so many rows at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor, from_numpy
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from holdfast.data.columns import ROWS, Chunk, TableSet, chunks_of
from holdfast.errors import UsageError

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


def rows_of(data: TableSet, batch: int | None) -> Any:
    """The rows of a table."""
    return Rows(data, batch or BATCH)
