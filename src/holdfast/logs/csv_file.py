"""Tables of numbers in text: Ultralytics' `results.csv`, Lightning's and Keras' logs, exports of trackers, columns of text."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Iterator

from holdfast.logs.parse_number import parse_number
from holdfast.logs.roles import EPOCH_NAMES, STEP_NAMES
from holdfast.logs.rows import Row
from holdfast.logs.summary_rows import without_summary

_DELIMITERS = ",;\t|"
_BLANKS = " "  # columns apart by any number of blanks
_LOOK = 5  # lines
_RULE = re.compile(r"[\s|+:=-]+")  # the lines of a drawn table
_DECIMAL_COMMA = re.compile(r"\s*[-+]?(?:\d+,(?!\d{3}\s*$)|0+,)\d+(?:e[-+]?\d+)?\s*", re.IGNORECASE)
_TIME = re.compile(r"\d+:\d\d(:\d\d)?")
_SUMMING_UP = {"mean", "avg", "average", "total", "sum", "std", "best", "final", "summary", "overall", "min", "max", "median"}


def looks_like_table(lines: list[str]) -> bool:
    """Whether the first lines are a header of names and rows of as many cells, most of them numbers."""
    lines = _some(lines)
    if len(lines) < 2:
        return False
    delimiter = _delimiter(lines)
    cells = list(_cells(lines, delimiter))
    header, rows = cells[0], cells[1:]
    names = [cell for cell in header if cell.strip() and parse_number(cell) is None]
    numeric = [cell for row in rows for cell in row if parse_number(cell) is not None]
    filled = [cell for row in rows for cell in row if cell.strip()]
    if delimiter == _BLANKS and (any(len(row) != len(header) for row in rows) or not all(map(_number_or_time, filled))):
        return False  # a text
    return len(header) > 1 and len(names) >= len(header) - 1 and len(numeric) * 2 >= max(1, len(filled))


def looks_like_number_list(lines: list[str]) -> bool:
    """Whether each line is a number and nothing else, as `numpy.savetxt` writes a list of losses."""
    lines = [line for line in lines if line.strip()][:_LOOK]
    return len(lines) > 1 and all(parse_number(line) is not None for line in lines)


def header_of(lines: list[str]) -> list[str]:
    """The names of the columns."""
    lines = _some(lines)
    return _names(next(_cells(lines, _delimiter(lines)))) if lines else []


def read_number_list(lines: Iterable[str], name: str) -> Iterator[Row]:
    """A row for each line, under one name."""
    for line in lines:
        if (value := parse_number(line)) is not None:
            yield {name: value}


def read_table(lines: Iterable[str]) -> Iterator[Row]:
    """One row for each line: the numbers in it, under the header's names. A header that comes again is skipped.

    Rows that sum the others up are skipped.
    """
    lines = (line.replace("\0", "") for line in lines if line.strip() and not _RULE.fullmatch(line))
    first = list(itertools.islice(lines, _LOOK))
    if first:
        yield from without_summary(_rows(first, lines))


def _rows(first: list[str], rest: Iterator[str]) -> Iterator[Row]:
    delimiter = _delimiter(first)
    decimal = "," if delimiter != "," and _decimal_comma(first[1:], delimiter) else None
    reader = _cells(itertools.chain(first, rest), delimiter)
    header = _names(next(reader))
    positions = {place for place, name in enumerate(header) if name.strip().lower() in (*STEP_NAMES, *EPOCH_NAMES)}
    for cells in _without_half_a_cell(reader, len(header)):
        if any(_sums_up(cell) for place, cell in enumerate(cells) if place == 0 or place in positions):
            continue
        pairs = zip(header, cells, strict=False)
        row = {name: value for name, cell in pairs if cell and (value := parse_number(cell, decimal=decimal)) is not None}
        if row:
            yield row


def _without_half_a_cell(rows: Iterator[list[str]], width: int) -> Iterator[list[str]]:
    """The rows; of a last one that is too short, as it is still being written, not the cell at its end."""
    newest = next(rows, None)
    for row in rows:
        if newest is not None:
            yield newest
        newest = row
    if newest is not None:
        yield newest if len(newest) >= width else newest[:-1]


def _some(lines: list[str]) -> list[str]:
    return [line for line in lines if line.strip() and not _RULE.fullmatch(line)][:_LOOK]


def _names(cells: list[str]) -> list[str]:
    return [name.strip().removeprefix("#").strip() or f"column {place}" for place, name in enumerate(cells)]


def _cells(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    """The cells of each line; the bars at both ends of a drawn table hold nothing."""
    if delimiter == _BLANKS:
        yield from (line.removeprefix("#").split() for line in lines)
    elif delimiter == "|":
        yield from (line.strip().strip("|").split("|") for line in lines)
    else:
        yield from csv.reader(lines, delimiter=delimiter, skipinitialspace=True)


def _number_or_time(cell: str) -> bool:
    return parse_number(cell) is not None or bool(_TIME.fullmatch(cell))


def _sums_up(cell: str) -> bool:
    return bool(cell) and cell.strip().strip("'\"*").lower().rstrip(":") in _SUMMING_UP


def _decimal_comma(lines: list[str], delimiter: str) -> bool:
    return any(_DECIMAL_COMMA.fullmatch(cell) for cells in _cells(lines, delimiter) for cell in cells)


def _delimiter(lines: list[str]) -> str:
    """The one that cuts all lines into as many cells, and most cells."""
    best, most = "", 0
    for delimiter in _DELIMITERS:
        counts = [line.count(delimiter) for line in lines]
        even = min(counts) if max(counts) <= 2 * max(1, min(counts)) else 0
        if even > most:
            best, most = delimiter, even
    return best or ("," if any("," in line for line in lines) else _BLANKS)
