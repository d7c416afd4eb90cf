"""A pyarrow dataset that reads its files one after the other.

Arrow's own scanner reads ahead of a slow reader until a gigabyte is waiting. `SELECT * FROM steps LIMIT 10` over five
million steps would read most of them; here it reads one file, and memory stays at a few files' worth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

_BATCH_ROWS = 65536


class OneByOne(ds.FileSystemDataset):  # type: ignore[misc]
    """A file dataset whose scans hold one file at a time; DuckDB asks `scanner` for columns and filter."""

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None) -> OneScan:
        """What DuckDB takes for a pyarrow scanner."""
        return OneScan(self, columns, filter)


class OneScan:
    """One scan: as much of pyarrow's `Scanner` as DuckDB uses."""

    def __init__(self, dataset: OneByOne, columns: Sequence[str] | None, only: Any) -> None:
        self._dataset, self._only = dataset, only
        self._columns = list(dataset.schema.names if columns is None else columns)
        self.projected_schema = pa.schema([dataset.schema.field(name) for name in self._columns])

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows, read when they are asked for."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        schema = self._dataset.schema
        for fragment in self._dataset.get_fragments(self._only):
            yield from fragment.to_batches(schema, columns=self._columns, filter=self._only, batch_size=_BATCH_ROWS)
