"""Tables of numbers in text: Ultralytics' `results.csv`, Lightning's and Keras' logs, exports of trackers."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator

from holdfast.logs.numbers import number
from holdfast.logs.rows import Row

_DELIMITERS = ",;\t|"
_LOOK = 5  # lines


def looks_like_table(lines: list[str]) -> bool:
    """Whether the first lines are a header of names and rows of as many cells, most of them numbers."""
    lines = [line for line in lines if line.strip()][:_LOOK]
    if len(lines) < 2:
        return False
    delimiter = _delimiter(lines)
    cells = [next(csv.reader([line], delimiter=delimiter)) for line in lines]
    header, rows = cells[0], cells[1:]
    names = [cell for cell in header if cell.strip() and number(cell) is None]
    numbers = [cell for row in rows for cell in row if number(cell) is not None]
    filled = [cell for row in rows for cell in row if cell.strip()]
    return len(header) > 1 and len(names) >= len(header) - 1 and len(numbers) * 2 >= max(1, len(filled))


def read_table(lines: Iterable[str]) -> Iterator[Row]:
    """One row for each line: the numbers in it, under the header's names. A header that comes again is passed over."""
    lines = iter(lines)
    first: list[str] = []
    for line in lines:
        if line.strip():
            first.append(line)
        if len(first) == _LOOK:
            break
    if not first:
        return
    delimiter = _delimiter(first)
    reader = csv.reader(_both(first, lines), delimiter=delimiter)
    header = [name.strip() or f"column {place}" for place, name in enumerate(next(reader))]
    for cells in reader:
        found = {name: value for name, cell in zip(header, cells, strict=False) if (value := number(cell)) is not None}
        if found:
            yield found


def _both(first: list[str], rest: Iterator[str]) -> Iterator[str]:
    for line in first:
        yield line.replace("\0", "")
    for line in rest:
        yield line.replace("\0", "")


def _delimiter(lines: list[str]) -> str:
    """The one that cuts all lines into as many cells, and most cells."""
    best, most = ",", 0.0
    for delimiter in _DELIMITERS:
        counts = [line.count(delimiter) for line in lines]
        even = min(counts) if max(counts) <= 2 * max(1, min(counts)) else 0
        if even > most:
            best, most = delimiter, even
    return best if most < math.inf else ","
