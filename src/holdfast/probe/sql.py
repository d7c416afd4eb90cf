"""SQL over a run: DuckDB in this process, read-only, limited in time, rows and memory.

Nothing can be written, attached, installed, set, or read from a file. A statement that runs past its time is
interrupted; one that does not hear it (DuckDB looks up only between two blocks of rows) is left behind in its thread,
and the caller gets the answer "too slow" in time all the same.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from holdfast.errors import QueryError, QueryTimeout, UnknownName
from holdfast.probe.niceness import SOMEBODY_WAITS, be_nice
from holdfast.probe.sources import LocalRun, Source, all_tables, open_all
from holdfast.probe.table_files import TableFiles
from holdfast.probe.views import (
    BACKTRACE,
    TORCH_TRACE,
    add_views,
    asks_for_backtrace,
    loses_nan,
    mentioned,
    needs_schema,
    referenced,
)
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES

Connection = duckdb.DuckDBPyConnection
MEMORY = "2GB"
_SETTINGS = {
    "threads": str(max(1, min(4, (os.cpu_count() or 2) // 2))),  # the training needs the processors more
    "memory_limit": f"'{MEMORY}'",
    "temp_directory": "''",
    "max_temp_directory_size": "'0KB'",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "enable_external_access": "false",
    "lock_configuration": "true",
}
_OF_A_CONNECTION = ("python_enable_replacements",)


class Database:
    """Hands out connections."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: Connection | None = None
        self._process = 0

    def connect(self) -> Connection:
        """A new connection that can read what it is given and nothing else."""
        with self._lock:
            if self._made is None or self._process != os.getpid():  # a child that was forked must not touch its parent's
                self._made, self._process = make_database(), os.getpid()
            return self._made.cursor()

    def leave(self) -> None:
        """A query does not end: it keeps its database, and those that come get a new one."""
        with self._lock:
            self._made = None


def make_database() -> Connection:
    """A database of its own, with the same limits."""
    made = duckdb.connect(":memory:")
    if loses_nan(made):
        made.execute("SET GLOBAL disabled_optimizers='filter_pushdown'")
    for name, value in _SETTINGS.items():
        made.execute(f"SET {'GLOBAL ' if name in _OF_A_CONNECTION else ''}{name}={value}")
    return made


DATABASE = Database()


_GRACE_SECONDS = 0.5
_EXPLAIN = re.compile(r"explain\s+(analyze\s+)?(\([^)]*\)\s*)?", re.IGNORECASE)
_COMMENTS = re.compile(r"^(\s*(--[^\n]*(\n|$)|/\*.*?\*/))*\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a query; `cut` says that there were more, `notes` what a person should know about them."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    cut: bool = False
    notes: list[str] = field(default_factory=list)


def query(run: RunFolder | Sequence[Source], sql: str, *, limit: int = 1000, timeout: float = 10.0) -> Answer:
    """Answer one SELECT, WITH or EXPLAIN over the tables of a run, live or finished, or over those of several sources."""
    sources = [LocalRun(run)] if isinstance(run, RunFolder) else run
    tables: list[TableFiles] = []
    everything, private = all_tables(sources), needs_schema(sql)
    if asks_for_backtrace(sql):
        _look_now(sources)

    def answer(connection: Connection) -> Answer:
        _check(connection, sql)
        names = referenced(sql, everything)
        tables.extend(open_all(sources, name) for name in names)
        add_views(connection, tables, with_schema=private)
        return _fetch(connection.execute(sql), sql, limit, tables)

    try:
        return _within(timeout, answer, make_database if private else DATABASE.connect)
    except duckdb.InterruptException:
        raise _too_slow(timeout) from None
    except duckdb.Error as error:
        columns = [column for table in tables for column in table.columns]
        raise explain_error(error, everything, columns, memory=MEMORY) from None


def _look_now(sources: Sequence[Source]) -> None:
    """Have stacks taken of the runs that live here, for `python.backtrace`."""
    from holdfast.probe.stacks.keep import fresh_stacks

    for source in sources:
        if isinstance(source, LocalRun):
            fresh_stacks(source.run)


def _check(connection: Connection, sql: str) -> None:
    """Let through one statement that only reads."""
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise explain_error(error, [], [], memory=MEMORY) from None
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
        statement = "PIVOT without IN (…)" if kind == duckdb.StatementType.MULTI else kind.name
        raise QueryError(
            f"{statement} is not allowed: a query only reads.",
            fix="use SELECT, WITH or EXPLAIN: tables are read-only",
        )


def _fetch(result: Connection, sql: str, limit: int, tables: list[TableFiles]) -> Answer:
    rows = result.fetchmany(limit + 1)
    for table in tables:
        if table.trouble is not None:
            raise table.trouble
    notes = [warning for table in tables for warning in table.warnings]
    notes += [_empty(table.name) for table in tables if mentioned(table.name, sql) and table.rows == 0]
    return Answer([column[0] for column in result.description or []], rows[:limit], len(rows) > limit, notes)


def _empty(name: str) -> str:
    because = TABLES[name].empty_because if name in TABLES else "no row was written."
    return f"{name} is empty: {because}"


def _within(seconds: float, job: Callable[[Connection], Answer], connect: Callable[[], Connection]) -> Answer:
    """Do the job in a thread of low priority, with a connection that is closed after it.

    When the time is over the job is interrupted, and left behind if it does not listen.
    """
    done: list[Answer] = []
    failed: list[BaseException] = []
    opened: list[Connection] = []

    def work() -> None:
        be_nice(SOMEBODY_WAITS)
        try:
            with connect() as connection:
                opened.append(connection)
                done.append(job(connection))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=work, name="holdfast-query", daemon=True)
    thread.start()
    thread.join(seconds)
    tries = 10 if thread.is_alive() else 0
    for _ in range(tries):
        with contextlib.suppress(duckdb.Error):  # it may have ended just now
            for connection in opened:
                connection.interrupt()
        thread.join(_GRACE_SECONDS / tries)
    if thread.is_alive():
        DATABASE.leave()
        raise _too_slow(seconds)
    if failed:
        raise failed[0]
    return done[0]


def _too_slow(seconds: float) -> QueryTimeout:
    return QueryTimeout(
        f"the query was stopped after {seconds:g} s.",
        fix="ask for fewer rows (WHERE step > …), or raise the limit: --timeout 60",
    )


_TABLE = re.compile(r"Table with name \"?([^\s\"!]+)\"? does not exist")
_COLUMN = re.compile(r"[Cc]olumn \"([^\"]+)\" (?:not found|does not exist)|does not have a column named \"([^\"]+)\"")
_LOOK = "`holdfast tables` lists the tables"
_CANDIDATES = re.compile(r"Candidate (?:bindings|functions)?:? (.*)")


def explain_error(error: duckdb.Error, tables: Iterable[str], columns: Iterable[str], *, memory: str) -> QueryError:
    """The error to show for one of DuckDB's."""
    text = str(error)
    if match := _TABLE.search(text):
        return _unknown("table", match[1], [*tables, TORCH_TRACE, BACKTRACE], fix=_LOOK)
    if match := _COLUMN.search(text):
        names = list(dict.fromkeys([*columns, *_candidates(text)]))
        return _unknown("column", match[1] or match[2], names, fix=f"DESCRIBE <table> lists its columns; {_LOOK}")
    if isinstance(error, duckdb.PermissionException):
        return QueryError("a query cannot use files, settings or extensions.", fix=_LOOK)
    if isinstance(error, duckdb.OutOfMemoryException):
        return QueryError(f"the query needs more than {memory} of memory.", fix="aggregate, or ask for less: WHERE step > …")
    return QueryError(_essential(text), fix=f"the SQL is DuckDB's; {_LOOK}")


def nearest(name: str, names: Iterable[str], at_most: int = 3) -> list[str]:
    """Known names that look like this one, whatever their case."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    return [by_lower[match] for match in difflib.get_close_matches(name.lower(), by_lower, at_most, 0.55)]


def _unknown(kind: str, name: str, names: list[str], *, fix: str) -> UnknownName:
    close = nearest(name, names)
    if close:
        return UnknownName(f"there is no {kind} {name!r}; near it: {', '.join(close)}.", fix=fix)
    listed = f"; there are: {', '.join(names)}" if names else ""
    return UnknownName(f"there is no {kind} {name!r}{listed}.", fix=fix)


def _candidates(text: str) -> list[str]:
    match = _CANDIDATES.search(text)
    return [name.split(".")[-1] for name in re.findall(r"\"([^\"]+)\"", match[1])] if match else []


def _essential(text: str) -> str:
    """The first line without its kind, then a suggestion if there is one, or the line of a statement that has several."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = re.sub(r"^[A-Z][\w ]* Error: ", "", lines[0]) if lines else "the statement cannot be run."
    hint = next((line for line in lines[1:] if line.startswith("Did you mean")), "")
    place = next((line for line in lines[1:] if re.match(r"LINE (?!1:)", line)), "")
    return " ".join(part for part in (first, hint, f"({place})" if place and not hint else "") if part)
