"""SQL over a run: DuckDB in this process, read-only, limited in time, rows and memory.

Nothing can be written, attached, installed, set, or read from a file. A statement that runs past its time is
interrupted; one that does not hear it (DuckDB looks up only between two blocks of rows) is left behind in its thread,
and the caller gets the answer "too slow" in time all the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import duckdb

from holdfast.errors import QueryError, QueryTimeout
from holdfast.probe.sql_errors import explain_error
from holdfast.probe.views import TableFiles, add_views, all_tables, loses_nan, mentioned, open_table, referenced
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES

_GRACE_SECONDS = 0.5
_MEMORY = "2GB"
_SETTINGS = {
    "threads": str(max(1, min(4, (os.cpu_count() or 2) // 2))),  # the training needs the processors more
    "memory_limit": f"'{_MEMORY}'",
    "temp_directory": "''",
    "max_temp_directory_size": "'0KB'",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "enable_external_access": "false",
    "lock_configuration": "true",
}
_EXPLAIN = re.compile(r"explain\s+(analyze\s+)?(\([^)]*\)\s*)?", re.IGNORECASE)
_COMMENTS = re.compile(r"^(\s*(--[^\n]*(\n|$)|/\*.*?\*/))*\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a query; `cut` says that there were more, `notes` what a person should know about them."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    cut: bool = False
    notes: list[str] = field(default_factory=list)


def query(run: RunFolder, sql: str, *, limit: int = 1000, timeout: float = 10.0) -> Answer:
    """Answer one SELECT, WITH or EXPLAIN over the tables of a run, live or finished."""
    connection = duckdb.connect(":memory:")
    _check(connection, sql)
    tables: list[TableFiles] = []
    everything = all_tables(run)

    def answer() -> Answer:
        tables.extend(open_table(run, name) for name in referenced(sql, everything))
        add_views(connection, tables)
        if loses_nan(connection):
            connection.execute("SET disabled_optimizers='filter_pushdown'")
        for name, value in _SETTINGS.items():
            connection.execute(f"SET {name}={value}")
        return _fetch(connection.execute(sql), sql, limit, tables)

    try:
        return _within(timeout, answer, connection)
    except duckdb.InterruptException:
        raise _too_slow(timeout) from None
    except duckdb.Error as error:
        columns = [column for table in tables for column in table.columns]
        raise explain_error(error, everything, columns, memory=_MEMORY) from None


def _check(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Let through one statement that only reads."""
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise explain_error(error, [], [], memory=_MEMORY) from None
    if len(statements) != 1:
        raise QueryError(
            "there is no SQL to run." if not statements else f"{len(statements)} statements at once.",
            fix="give one statement, for example: SELECT step, loss FROM steps ORDER BY step DESC LIMIT 5",
        )
    kind = statements[0].type
    if kind == duckdb.StatementType.EXPLAIN:
        inner = _EXPLAIN.sub("", _COMMENTS.sub("", sql, count=1), count=1)
        with contextlib.suppress(duckdb.Error):
            kind = connection.extract_statements(inner)[0].type
    if kind != duckdb.StatementType.SELECT:
        what = "PIVOT without IN (…)" if kind == duckdb.StatementType.MULTI else kind.name
        raise QueryError(
            f"{what} is not allowed: a query only reads.",
            fix="ask with SELECT, WITH or EXPLAIN; the tables belong to the training that writes them",
        )


def _fetch(result: duckdb.DuckDBPyConnection, sql: str, limit: int, tables: list[TableFiles]) -> Answer:
    rows = result.fetchmany(limit + 1)
    notes = [warning for table in tables for warning in table.warnings]
    notes += [_empty(table.name) for table in tables if mentioned(table.name, sql) and table.rows == 0]
    return Answer([one[0] for one in result.description or []], rows[:limit], len(rows) > limit, notes)


def _empty(name: str) -> str:
    because = TABLES[name].empty_because if name in TABLES else "no row was written."
    return f"{name} is empty: {because}"


def _within(seconds: float, job: Callable[[], Answer], connection: duckdb.DuckDBPyConnection) -> Answer:
    """Do the job in a thread and close the connection after it.

    When the time is over the job is interrupted, and left behind if it does not listen.
    """
    done: list[Answer] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            done.append(job())
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            failed.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=work, name="holdfast-query", daemon=True)
    thread.start()
    thread.join(seconds)
    tries = 10 if thread.is_alive() else 0
    for _ in range(tries):
        with contextlib.suppress(duckdb.Error):  # it may have ended just now
            connection.interrupt()
        thread.join(_GRACE_SECONDS / tries)
    if thread.is_alive():
        raise _too_slow(seconds)
    if failed:
        raise failed[0]
    return done[0]


def _too_slow(seconds: float) -> QueryTimeout:
    return QueryTimeout(
        f"the query was stopped after {seconds:g} s.",
        fix="ask for fewer rows (WHERE step > …), or give it longer: --timeout 60",
    )
