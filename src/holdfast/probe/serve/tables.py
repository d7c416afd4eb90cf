"""The tables of the runs that a server has: as Arrow, or as the answer to SQL. The training process is not asked."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from holdfast import units
from holdfast.errors import QueryError, UnknownName
from holdfast.probe.serve.reply import Denied, Json, Request, Stream
from holdfast.probe.sources import LocalRun, all_tables, open_all
from holdfast.probe.sql import query
from holdfast.probe.table_files import TableFiles
from holdfast.signals.schema import TABLES

_BATCH_ROWS, _BATCHES = 65536, 256
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def names(request: Request) -> Json:
    """The tables that there are."""
    return Json(all_tables(_sources(request)))


def about(request: Request) -> Json:
    """Columns and rows of one table, and a mark under which its rows of this moment can be had."""
    table = _table(request)
    schema = base64.b64encode(table.full_schema.serialize().to_pybytes()).decode()
    return Json({"schema": schema, "rows": table.rows, "warnings": table.warnings, "opened": request.server.opened.keep(table)})


def rows(request: Request) -> Stream:
    """The rows of one table, of the columns that `?column=` names or of all."""
    mark = request.options.get("opened", [""])[0]
    table = request.server.opened.find(mark, request.path_parts[0]) or _table(request)
    wanted = request.options.get("column")
    columns = [name for name in table.columns if wanted is None or name in wanted]
    size, limit = table.rows * max(1, len(columns)) * 8, request.server.limits.table_bytes
    if size > limit:
        problem = (
            f"{table.name} has {table.rows:,} rows here: about {units.size(size)} for {len(columns)} columns, over the limit."
        )
        raise Denied(413, problem, fix="ask this server alone: then the SQL runs there, and only its answer is sent")
    return Stream(lambda out: _write(table, columns, out))


def sql(request: Request) -> Json:
    """The answer to SQL, over all runs together."""
    limits, body = request.server.limits, request.body
    text = body.get("sql")
    if not isinstance(text, str):
        raise QueryError("there is no SQL to run.", fix="send {'sql': 'SELECT …'}")
    seconds = min(_number(body.get("timeout"), 10.0), limits.sql_seconds)
    limit = int(min(_number(body.get("limit"), 1000), limits.sql_rows))
    with _turn(request, seconds):
        answer = query(_sources(request), text, limit=limit, timeout=seconds)
    return Json({"columns": answer.columns, "rows": answer.rows, "cut": answer.cut, "notes": answer.notes})


@contextmanager
def _turn(request: Request, seconds: float) -> Iterator[None]:
    """A few queries at once: each may take a processor that the training needs more."""
    if not request.server.sql_turn.acquire(timeout=seconds):
        raise Denied(503, "too many queries run there already.", fix="ask again in a moment")
    try:
        yield
    finally:
        request.server.sql_turn.release()


def _number(value: Any, usual: float) -> float:
    return max(0.1, float(value)) if isinstance(value, (int, float)) else usual


def _sources(request: Request) -> list[LocalRun]:
    return [LocalRun(run, labelled=True) for run in request.runs]


def _table(request: Request) -> TableFiles:
    name, sources = request.path_parts[0], _sources(request)
    if name not in TABLES and name not in all_tables(sources):
        raise UnknownName(f"there is no table {name!r} here.", fix="`holdfast tables` lists the tables")
    return open_all(sources, name)


def _write(table: TableFiles, columns: list[str], out: Any) -> None:
    schema = pa.schema([table.full_schema.field(name) for name in columns])
    with pa.ipc.new_stream(pa.PythonFile(out, "w"), schema, options=_OPTIONS) as writer:
        for part in (table.stored() if table.fragments else None, table.live()):
            for batches in _together(part.scanner(columns).to_reader() if part is not None else ()):
                writer.write_table(pa.Table.from_batches(batches, schema).combine_chunks())


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Batches of many small ranks in groups that are worth sending."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        group.append(batch)
        if sum(batch.num_rows for batch in group) >= _BATCH_ROWS or len(group) >= _BATCHES:
            yield group
            group = []
    if group:
        yield group
