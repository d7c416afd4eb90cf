"""The tables of a run inside DuckDB: each is one view over all ranks, live segments and Parquet together.

Everything is scanned through pyarrow datasets, so that only the columns that a query needs are read, of Parquet files also
only the row groups; rank and part are known for each file and take part in that. Rows of other machines come the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import duckdb
import pyarrow as pa

from holdfast.probe.table_files import TableFiles

TORCH_TRACE, BACKTRACE = "python.torch_trace", "python.backtrace"
_TORCH_TRACE = """
CREATE SCHEMA IF NOT EXISTS python;
CREATE VIEW python.torch_trace AS
SELECT step, module, stage, seconds AS duration, COALESCE(gpu_allocated, host_rss) AS allocated, time, rank{where} FROM modules
"""
_BACKTRACE = """
CREATE SCHEMA IF NOT EXISTS python;
CREATE VIEW python.backtrace AS
WITH training AS (
    SELECT time, pid, thread FROM stacks WHERE depth IS NOT NULL AND time = (SELECT MAX(time) FROM stacks)
    ORDER BY rank NULLS LAST, worker NULLS FIRST, thread <> pid LIMIT 1
)
SELECT ROW_NUMBER() OVER (ORDER BY depth) - 1 AS depth, func, file, lineno, thread_name, holds_gil, rank, pid, thread, time
FROM stacks JOIN training USING (time, pid, thread) WHERE native = 0
"""
_VIEW_OVER = {"modules": "torch_trace", "stacks": "backtrace"}
_ASKS_FOR_ALL = {"show", "information_schema", "duckdb_tables", "duckdb_views", "duckdb_columns", "query_table", "query"}


def mentioned(table: str, sql: str) -> bool:
    """Whether a statement has the table's name in it, or the name of a view over it."""
    tokens = _words(sql)
    return table.lower() in tokens or _VIEW_OVER.get(table) in tokens


def referenced(sql: str, tables: Iterable[str]) -> list[str]:
    """Tables that a statement may read: those it mentions.

    Too many does no harm: a table that is not read costs only its opening. A parser would have to know views,
    `USING` and `PIVOT`.
    """
    everything = bool(_words(sql) & _ASKS_FOR_ALL)
    return [name for name in tables if everything or mentioned(name, sql)]


def asks_for_backtrace(sql: str) -> bool:
    """Whether a statement reads `python.backtrace`, which is of now while the run lives."""
    return "backtrace" in _words(sql)


def _words(sql: str) -> set[str]:
    return set(re.findall(r"\w+", sql.lower()))


def needs_schema(sql: str) -> bool:
    """Whether a statement may read a view of the schema `python`; only a database of its own can have that."""
    return bool(_words(sql) & {"python", *_ASKS_FOR_ALL})


def add_views(connection: duckdb.DuckDBPyConnection, tables: Iterable[TableFiles], *, with_schema: bool) -> None:
    """Make the tables known to a connection under their names, for it alone.

    `with_schema`: its database is its own; the views of `python` whose table is there are made too.
    """
    names, labelled = set(), False
    for table in tables:
        kinds = {"stored": table.fragments and table.stored(), "far": table.distant and table.far(), "live": table.live()}
        parts = []
        for kind, rows in kinds.items():
            if rows or kind == "live":
                connection.register(f"{table.name} ({kind})", rows)
                parts.append(f'SELECT * FROM "{table.name} ({kind})"')
        connection.execute(f'CREATE {"" if with_schema else "TEMP "}VIEW "{table.name}" AS {" UNION ALL ".join(parts)}')
        names.add(table.name)
        labelled = labelled or table.labelled
    if "modules" in names and with_schema:
        connection.execute(_TORCH_TRACE.format(where=", host, run" if labelled else ""))
    if "stacks" in names and with_schema:
        connection.execute(_BACKTRACE)


def loses_nan(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether this DuckDB hands `loss > 5` to Arrow, for which a NaN is not above 5 as it is in SQL (seen in 1.1)."""
    connection.register("one nan", pa.table({"x": [float("nan")]}))
    rows = connection.execute('SELECT x FROM "one nan" WHERE x > 5').fetchall()
    connection.unregister("one nan")
    return not rows
