"""One table of a run, or of many: its columns, and where its rows are.

A part of a table belongs to somebody: a rank and its training, and where several runs are asked at once also a host and
a run. Rows are in Parquet files, in segments that are still raw, or on another machine.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from holdfast import units
from holdfast.errors import QueryError
from holdfast.probe.arrow import known_schema, read_live, segment_schema
from holdfast.probe.pieces import Pieces, open_pieces, table_names
from holdfast.signals.run_folder import RunFolder, printed_folder
from holdfast.signals.schema import TABLES

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
        filter_text = "" if only is None else str(only)
        return columns + [name for name in self.schema.names if name not in columns and name in filter_text]


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


SEEN_FROM_OUTSIDE = ("processes", "gpus", "stacks")
_DISTANT_BYTES = 2 << 30
_WHERE = (pa.field("host", pa.string()), pa.field("run", pa.string()))
_WHOSE = (pa.field("rank", pa.int32()), pa.field("part", pa.int32()))


@dataclass(slots=True)
class Owner:
    """A folder that holds a part of a table, and which rank's it is; nobody's for what was seen from outside."""

    folder: Path
    rank: int | None = None
    part: int | None = None
    host: str | None = None
    run: str | None = None


class Distant(Protocol):
    """A part of a table on another machine, with the columns that say whose its rows are."""

    schema: pa.Schema
    rows: int

    def load(self, columns: list[str]) -> pa.Table:
        """These columns of all its rows; one that it does not have is skipped."""


@dataclass(slots=True)
class TableFiles:
    """One table: its columns, and the opened files of every rank. `labelled` says that host and run are columns too."""

    name: str
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    owners: list[tuple[Owner, Pieces]] = field(default_factory=list)
    fragments: list[tuple[Owner, ds.ParquetFileFragment]] = field(default_factory=list)
    distant: list[Distant] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    labelled: bool = False
    trouble: QueryError | None = None  # why rows could not be brought here

    @property
    def rows(self) -> int:
        """Rows in all files; of a Parquet file only its end is read for that."""
        live = sum(segment.rows for _, pieces in self.owners for _, segment in pieces.segments)
        stored = sum(int(fragment.metadata.num_rows) for _, fragment in self.fragments)
        return live + stored + sum(part.rows for part in self.distant)

    @property
    def owner_fields(self) -> list[pa.Field]:
        """The columns that say whose a row is."""
        return [*(_WHERE if self.labelled else ()), *(() if self.name in SEEN_FROM_OUTSIDE else _WHOSE)]

    @property
    def full_schema(self) -> pa.Schema:
        """The columns as a query sees them."""
        return pa.schema([*self.owner_fields, *self.schema])

    @property
    def columns(self) -> list[str]:
        """Their names."""
        return [column.name for column in self.full_schema]

    def live(self) -> OnDemand:
        """All raw segments of all ranks, nothing of them read yet."""
        return OnDemand.over(self.full_schema, self._load_live)

    def stored(self) -> FewAtATime:
        """All Parquet segments of all ranks, nothing of them read yet."""
        fragments = [fragment for _, fragment in self.fragments]
        return FewAtATime(fragments, self.full_schema, ds.ParquetFileFormat(), LocalFileSystem())

    def far(self) -> OnDemand:
        """What is on other machines, nothing of it fetched yet."""
        return OnDemand.over(self.full_schema, self._load_distant)

    def _load_live(self, columns: list[str]) -> pa.Table:
        schema = pa.schema([self.full_schema.field(name) for name in columns])
        owned = [column for column in self.owner_fields if column.name in columns]
        measured = pa.schema([self.schema.field(name) for name in columns if name in self.schema.names])
        live = [(owner, pieces) for owner, pieces in self.owners if pieces.segments]
        if not live:
            return schema.empty_table()
        rows = pa.concat_tables([read_live(owner.folder, pieces, measured) for owner, pieces in live])
        counts = [sum(segment.rows for _, segment in pieces.segments) for _, pieces in live]
        whose = pa.array(np.repeat(np.arange(len(live)), counts))
        owners = {
            column.name: pa.array([getattr(owner, column.name) for owner, _ in live], column.type).take(whose) for column in owned
        }
        return pa.Table.from_arrays([owners[name] if name in owners else rows.column(name) for name in columns], schema=schema)

    def _load_distant(self, columns: list[str]) -> pa.Table:
        schema = pa.schema([self.full_schema.field(name) for name in columns])
        size = sum(part.rows for part in self.distant) * len(columns) * 8
        if size > _DISTANT_BYTES:
            problem = (
                f"{len(columns)} columns of {self.name} on other machines are about {units.size(size)}, too much to bring here."
            )
            self.trouble = QueryError(problem, fix="ask one server at a time: its SQL runs there, and only its answer is sent")
            return schema.empty_table()
        with ThreadPoolExecutor(max(1, min(32, len(self.distant)))) as pool:
            tables = list(pool.map(lambda part: part.load(columns), self.distant))
        return pa.concat_tables([fitted(table, schema) for table in tables]) if tables else schema.empty_table()


def tables_of(run: RunFolder) -> list[str]:
    """Tables that can be asked for: those of this version, then what else is in the folder."""
    names = (name for owner in (*_ranks(run), Owner(run.path / "host")) for name in table_names(owner.folder))
    return list(dict.fromkeys((*TABLES, *names)))


def open_table(run: RunFolder, name: str, *, labelled: bool = False) -> TableFiles:
    """Open the files of one table over all ranks of a run."""
    outside = name in SEEN_FROM_OUTSIDE or (name not in TABLES and (run.path / "host" / name).is_dir())
    folders = [Owner(run.path / "host")] if outside else _ranks(run)
    if name == "evaluations":
        folders += [
            Owner(path, folder.rank, folder.part) for folder in folders if (path := printed_folder(folder.folder)).is_dir()
        ]
    if labelled:
        _label(run, folders, outside=outside)
    return open_owned(name, folders, labelled=labelled)


def open_owned(name: str, folders: Sequence[Owner], *, labelled: bool = False) -> TableFiles:
    """Open the files of one table in the folders that hold its parts."""
    make_room(3 * len(folders))
    owners = [(owner, open_pieces(owner.folder / name)) for owner in folders]
    table = TableFiles(name, owners=owners, labelled=labelled, warnings=[w for _, pieces in owners for w in pieces.warnings])
    files = [(owner, path) for owner, pieces in owners for _, path in pieces.parquet]
    table.fragments = [fragment for owner, path in files if (fragment := _fragment(table, owner, path))]
    live = {segment.columns: segment for _, pieces in owners for _, segment in pieces.segments}
    stored = _different(fragment.physical_schema for _, fragment in table.fragments)
    table.schema = known_schema(name, [*map(segment_schema, live.values()), *stored])
    return table


def join(name: str, tables: Sequence[TableFiles]) -> TableFiles:
    """The same table of several runs as one."""
    if len(tables) == 1:
        return tables[0]
    joined = TableFiles(name, known_schema(name, _different(table.schema for table in tables)))
    joined.labelled = any(table.labelled for table in tables)
    for table in tables:
        joined.owners += table.owners
        joined.fragments += table.fragments
        joined.distant += table.distant
        joined.warnings += table.warnings
    return joined


def fitted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in the columns and types of a schema; a column that it does not have, or of a type that does not fit, is null."""
    columns = [table.column(wanted.name) if wanted.name in table.column_names else None for wanted in schema]
    arrays = [_as_type(column, wanted.type, table.num_rows) for column, wanted in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _as_type(column: pa.ChunkedArray | None, wanted: pa.DataType, rows: int) -> Any:
    if column is None:
        return pa.nulls(rows, wanted)
    if column.type == wanted:
        return column
    try:
        return column.cast(wanted, safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(rows, wanted)


def _different(schemas: Any) -> list[pa.Schema]:
    """Schemas, each once: thousands of files have the same."""
    distinct: list[pa.Schema] = []
    for schema in schemas:
        if not any(schema is other or schema.equals(other) for other in distinct):
            distinct.append(schema)
    return distinct


def _ranks(run: RunFolder) -> list[Owner]:
    try:
        return [Owner(recording.path, recording.rank, recording.part) for recording in run.recordings()]
    except OSError:
        return []


def _label(run: RunFolder, owners: list[Owner], *, outside: bool) -> None:
    """Say host and run: of a rank the host of its process, of anything else that of the run."""
    usual = str(run.info().get("host") or socket.gethostname())
    hosts = {} if outside else {recording.path: recording.info().get("host") for recording in run.recordings()}
    for owner in owners:
        owner.host, owner.run = str(hosts.get(owner.folder) or usual), run.name


def _fragment(table: TableFiles, owner: Owner, path: Path) -> tuple[Owner, ds.ParquetFileFragment] | None:
    """A Parquet segment that knows its rank; None, and a warning, if it cannot be read."""
    whose = None
    for column in table.owner_fields:
        is_it = ds.field(column.name) == pa.scalar(getattr(owner, column.name), column.type)
        whose = is_it if whose is None else whose & is_it
    fragment = ds.ParquetFileFormat().make_fragment(str(path), LocalFileSystem(), partition_expression=whose)
    try:
        fragment.ensure_complete_metadata()
    except (OSError, pa.ArrowInvalid) as error:
        table.warnings.append(f"{path} cannot be read: {str(error).splitlines()[0]}")
        return None
    return owner, fragment


_ALWAYS_THERE = 128


def make_room(files: int) -> None:
    """Take as many more as are needed of what the system allows; where it is less, the ranks beyond are told as unreadable."""
    if files <= _ALWAYS_THERE:
        return
    with contextlib.suppress(ImportError, OSError, ValueError, psutil.Error):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = psutil.Process().num_fds() + files + _ALWAYS_THERE
        if soft != resource.RLIM_INFINITY and soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
