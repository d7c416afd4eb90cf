"""pyarrow datasets that read only what DuckDB asks for, when it asks.

Arrow's own scanner reads ahead of a slow reader until a gigabyte is waiting. `SELECT * FROM steps LIMIT 10` over five
million steps would read most of them; `FewAtATime` reads one file, or a few small ones together, and memory stays at
that. `OnDemand` is for rows that are no files: mapped segments, and tables of other machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

_BATCH_ROWS = 65536
_FILES_TOGETHER = 64  # the files of 2,000 ranks are small, and starting a scan costs more than reading one
Load = Callable[[list[str]], pa.Table]


class FewAtATime(ds.FileSystemDataset):  # type: ignore[misc]
    """A file dataset whose scans hold a few files at a time; DuckDB asks `scanner` for columns and filter."""

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None) -> OneScan:
        """What DuckDB takes for a pyarrow scanner."""
        names = list(self.schema.names if columns is None else columns)
        return OneScan(self.schema, names, self._batches(names, filter))

    def _batches(self, columns: list[str], only: Any) -> Iterator[pa.RecordBatch]:
        for group in together(self.get_fragments(only), _BATCH_ROWS, _FILES_TOGETHER):
            files = ds.FileSystemDataset(group, self.schema, self.format, self.filesystem)
            yield from files.to_batches(columns=columns, filter=only, batch_size=_BATCH_ROWS)


class OnDemand(ds.InMemoryDataset):  # type: ignore[misc]
    """A dataset that calls `load` with the columns of each scan."""

    load: Load

    @classmethod
    def over(cls, schema: pa.Schema, load: Load) -> OnDemand:
        """The dataset of that schema; `load` answers with the named columns, in that order."""
        made = cls(schema.empty_table())
        made.load = load
        return made

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None) -> OneScan:
        """What DuckDB takes for a pyarrow scanner."""
        names = list(self.schema.names if columns is None else columns)
        return OneScan(self.schema, names, self._batches(names, filter))

    def _batches(self, columns: list[str], only: Any) -> Iterator[pa.RecordBatch]:
        table = self.load(self._with_filtered(columns, only))
        chosen = (table if only is None else table.filter(only)).select(columns)
        yield from chosen.to_batches(max_chunksize=_BATCH_ROWS)

    def _with_filtered(self, columns: list[str], only: Any) -> list[str]:
        """The columns, and those that the filter looks at: an expression names them in its text."""
        words = "" if only is None else str(only)
        return columns + [name for name in self.schema.names if name not in columns and name in words]


class OneScan:
    """One scan: as much of pyarrow's `Scanner` as DuckDB uses."""

    def __init__(self, schema: pa.Schema, columns: list[str], batches: Iterable[pa.RecordBatch]) -> None:
        self.projected_schema = pa.schema([schema.field(name) for name in columns])
        self._batches = batches

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows, read when they are asked for."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches)


def together(fragments: Iterable[Any], rows: int, files: int) -> Iterator[list[Any]]:
    """Files that follow each other, in groups of about `rows` rows and at most `files`."""
    group: list[Any] = []
    held = 0
    for fragment in fragments:
        count = int(fragment.metadata.num_rows)
        if group and (held + count > rows or len(group) == files):
            yield group
            group, held = [], 0
        group.append(fragment)
        held += count
    if group:
        yield group
