"""What DuckDB says about a wrong statement, in one line, with the nearest names that exist."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import duckdb

from holdfast.errors import QueryError, UnknownName
from holdfast.probe.views import BACKTRACE, TORCH_TRACE

_TABLE = re.compile(r"Table with name \"?([^\s\"!]+)\"? does not exist")
_COLUMN = re.compile(r"[Cc]olumn \"([^\"]+)\" (?:not found|does not exist)|does not have a column named \"([^\"]+)\"")
_LOOK = "`holdfast tables` lists what can be asked"
_CANDIDATES = re.compile(r"Candidate (?:bindings|functions)?:? (.*)")


def explain_error(error: duckdb.Error, tables: Iterable[str], columns: Iterable[str], *, memory: str) -> QueryError:
    """The error to show for one of DuckDB's."""
    text = str(error)
    if found := _TABLE.search(text):
        return _unknown("table", found[1], [*tables, TORCH_TRACE, BACKTRACE], fix=_LOOK)
    if found := _COLUMN.search(text):
        names = list(dict.fromkeys([*columns, *_candidates(text)]))
        return _unknown("column", found[1] or found[2], names, fix=f"DESCRIBE <table> lists its columns; {_LOOK}")
    if isinstance(error, duckdb.PermissionException):
        return QueryError("files, settings and extensions are out of reach of a query.", fix=_LOOK)
    if isinstance(error, duckdb.OutOfMemoryException):
        return QueryError(f"the query needs more than {memory} of memory.", fix="aggregate, or ask for less: WHERE step > …")
    return QueryError(_essential(text), fix=f"the SQL is DuckDB's; {_LOOK}")


def nearest(name: str, known: Iterable[str], at_most: int = 3) -> list[str]:
    """Known names that look like this one, whatever their case."""
    by_lower = {one.lower(): one for one in known}
    return [by_lower[one] for one in difflib.get_close_matches(name.lower(), by_lower, at_most, 0.55)]


def _unknown(what: str, name: str, known: list[str], *, fix: str) -> UnknownName:
    close = nearest(name, known)
    if close:
        return UnknownName(f"there is no {what} {name!r}; near it: {', '.join(close)}.", fix=fix)
    listed = f"; there are: {', '.join(known)}" if known else ""
    return UnknownName(f"there is no {what} {name!r}{listed}.", fix=fix)


def _candidates(text: str) -> list[str]:
    found = _CANDIDATES.search(text)
    return [name.split(".")[-1] for name in re.findall(r"\"([^\"]+)\"", found[1])] if found else []


def _essential(text: str) -> str:
    """The first line without its kind, then a suggestion if there is one, or the line of a statement that has several."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = re.sub(r"^[A-Z][\w ]* Error: ", "", lines[0]) if lines else "the statement cannot be run."
    hint = next((line for line in lines[1:] if line.startswith("Did you mean")), "")
    place = next((line for line in lines[1:] if re.match(r"LINE (?!1:)", line)), "")
    return " ".join(part for part in (first, hint, f"({place})" if place and not hint else "") if part)
