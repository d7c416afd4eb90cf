"""The tables of a run inside DuckDB: each is one view over all ranks, live segments and Parquet together.

Parquet is scanned through a pyarrow dataset, so that only the columns and row groups that a query needs are read;
rank and part are known for each file and take part in that. Raw segments are small, mapped, and come as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from holdfast.probe.arrow import known_schema, read_live, segment_schema
from holdfast.probe.one_by_one import OneByOne
from holdfast.probe.pieces import Pieces, open_pieces, table_names
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES

SEEN_FROM_OUTSIDE = ("processes", "gpus")
TORCH_TRACE = "python.torch_trace"
_TORCH_TRACE = """
CREATE SCHEMA python;
CREATE VIEW python.torch_trace AS
SELECT step, module, stage, seconds AS duration, COALESCE(gpu_allocated, host_rss) AS allocated, time, rank FROM modules
"""
_OWNER = [pa.field("rank", pa.int32()), pa.field("part", pa.int32())]
_ASKS_FOR_ALL = {"show", "information_schema", "duckdb_tables", "duckdb_views", "duckdb_columns", "query_table", "query"}


@dataclass(slots=True)
class Owner:
    """A folder that holds a part of a table, and which rank's it is; nobody's for what was seen from outside."""

    folder: Path
    rank: int | None = None
    part: int | None = None


@dataclass(slots=True)
class TableFiles:
    """One table of a run: its columns, and the opened files of every rank."""

    name: str
    schema: pa.Schema
    owners: list[tuple[Owner, Pieces]]
    fragments: list[tuple[Owner, ds.ParquetFileFragment]]
    warnings: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows in all files; of a Parquet file only its end is read for that."""
        live = sum(segment.rows for _, pieces in self.owners for _, segment in pieces.segments)
        return live + sum(int(fragment.metadata.num_rows) for _, fragment in self.fragments)

    @property
    def columns(self) -> list[str]:
        """The columns as a query sees them."""
        return [*(one.name for one in _owner_fields(self.name)), *self.schema.names]


def all_tables(run: RunFolder) -> list[str]:
    """Tables that can be asked for: those of this version, then what else is in the folder."""
    found = (name for owner in (*_ranks(run), Owner(run.path / "host")) for name in table_names(owner.folder))
    return list(dict.fromkeys((*TABLES, *found)))


def mentioned(table: str, sql: str) -> bool:
    """Whether a statement has the table's name in it, or the name of a view over it."""
    words = _words(sql)
    return table.lower() in words or (table == "modules" and "torch_trace" in words)


def referenced(sql: str, tables: Iterable[str]) -> list[str]:
    """Tables that a statement may read: those it mentions.

    Too many does no harm: a table that is not read costs only its opening. A parser would have to know views,
    `USING` and `PIVOT`.
    """
    everything = bool(_words(sql) & _ASKS_FOR_ALL)
    return [name for name in tables if everything or mentioned(name, sql)]


def _words(sql: str) -> set[str]:
    return set(re.findall(r"\w+", sql.lower()))


def open_table(run: RunFolder, name: str) -> TableFiles:
    """Open the files of one table over all ranks."""
    outside = name in SEEN_FROM_OUTSIDE or (name not in TABLES and (run.path / "host" / name).is_dir())
    owners = [(owner, open_pieces(owner.folder / name)) for owner in ([Owner(run.path / "host")] if outside else _ranks(run))]
    table = TableFiles(name, pa.schema([]), owners, [], [w for _, pieces in owners for w in pieces.warnings])
    files = [(owner, path) for owner, pieces in owners for _, path in pieces.parquet]
    table.fragments = [found for owner, path in files if (found := _fragment(table, owner, path))]
    live = [segment_schema(segment) for _, pieces in owners for _, segment in pieces.segments]
    table.schema = known_schema(name, [*live, *(fragment.physical_schema for _, fragment in table.fragments)])
    return table


def add_views(connection: duckdb.DuckDBPyConnection, tables: Iterable[TableFiles]) -> None:
    """Make the tables known to a connection under their names, and `python.torch_trace` if its table is there."""
    names = set()
    for table in tables:
        connection.register(f"{table.name} (live)", _live(table))
        parts = [f'SELECT * FROM "{table.name} (live)"']
        if table.fragments:
            connection.register(f"{table.name} (stored)", _stored(table))
            parts.insert(0, f'SELECT * FROM "{table.name} (stored)"')
        connection.execute(f'CREATE VIEW "{table.name}" AS {" UNION ALL ".join(parts)}')
        names.add(table.name)
    if "modules" in names:
        connection.execute(_TORCH_TRACE)


def _ranks(run: RunFolder) -> list[Owner]:
    try:
        return [Owner(recording.path, recording.rank, recording.part) for recording in run.recordings()]
    except OSError:
        return []


def _owner_fields(name: str) -> list[pa.Field]:
    return [] if name in SEEN_FROM_OUTSIDE else _OWNER


def _full_schema(table: TableFiles) -> pa.Schema:
    return pa.schema([*_owner_fields(table.name), *table.schema])


def _live(table: TableFiles) -> pa.Table:
    """All raw segments of all ranks."""
    schema = _full_schema(table)
    parts = []
    for owner, pieces in table.owners:
        rows = read_live(owner.folder, pieces, table.schema)
        owned = [pa.repeat(pa.scalar(getattr(owner, one.name), one.type), rows.num_rows) for one in _owner_fields(table.name)]
        parts.append(pa.Table.from_arrays([*owned, *rows.columns], schema=schema))
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _stored(table: TableFiles) -> ds.FileSystemDataset:
    """All Parquet segments of all ranks, nothing of them read yet."""
    fragments = [fragment for _, fragment in table.fragments]
    return OneByOne(fragments, _full_schema(table), ds.ParquetFileFormat(), LocalFileSystem())


def _fragment(table: TableFiles, owner: Owner, path: Path) -> tuple[Owner, ds.ParquetFileFragment] | None:
    """A Parquet segment that knows its rank; None, and a warning, if it cannot be read."""
    whose = None
    for one in _owner_fields(table.name):
        is_it = ds.field(one.name) == pa.scalar(getattr(owner, one.name), one.type)
        whose = is_it if whose is None else whose & is_it
    fragment = ds.ParquetFileFormat().make_fragment(str(path), LocalFileSystem(), partition_expression=whose)
    try:
        fragment.ensure_complete_metadata()
    except (OSError, pa.ArrowInvalid) as error:
        table.warnings.append(f"{path} cannot be read: {str(error).splitlines()[0]}")
        return None
    return owner, fragment


def loses_nan(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether this DuckDB hands `loss > 5` to Arrow, for which a NaN is not above 5 as it is in SQL (seen in 1.1)."""
    connection.register("one nan", pa.table({"x": [float("nan")]}))
    found = connection.execute('SELECT x FROM "one nan" WHERE x > 5').fetchall()
    connection.unregister("one nan")
    return not found
