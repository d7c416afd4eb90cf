"""Last rows of a table that are no part of the run: means of the columns, the best row once more, totals without an epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from holdfast.logs.roles import EPOCH_NAMES, STEP_NAMES

Row = Mapping[str, float]
_AGREE = 2  # columns that vary, at least: one that agrees may do so by chance
_REMEMBERED = 20_000  # rows: a table longer than that is not summed up by hand
_DIGITS = 12  # of a whole row: with so many it is not met twice by chance
_ROUNDING = 1e-4


def without_summary(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows without a last one that sums the others up."""
    past, newest = _Past(), None
    for row in rows:
        if newest is not None:
            past.add(newest)
            yield newest
        newest = row
    if newest is not None and not past.is_summed_up_by(newest):
        yield newest


class _Past:
    """What the rows so far add up to."""

    def __init__(self) -> None:
        self._rows = 0
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._ranges: dict[str, tuple[float, float]] = {}
        self._places: dict[str, int] = {}  # rows in which a column that tells the position is filled
        self._seen: dict[tuple[tuple[str, float], ...], int] = {}

    def add(self, row: Row) -> None:
        self._rows += 1
        for name, value in row.items():
            if _position(name):
                self._places[name] = self._places.get(name, 0) + 1
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1
            low, high = self._ranges.get(name, (value, value))
            self._ranges[name] = min(low, value), max(high, value)
        if self._rows <= _REMEMBERED:
            self._seen[_measured(row)] = self._rows

    def is_summed_up_by(self, row: Row) -> bool:
        if self._rows < 3:
            return False
        always = [name for name, count in self._places.items() if count == self._rows]
        if always and not any(name in row for name in always):
            return True
        return self._is_the_mean(row) or self._is_an_earlier_one(row)

    def _is_the_mean(self, row: Row) -> bool:
        names = [name for name in row if self._varies(name) and not _position(name)]
        agree = [_close(row[name], self._sums[name] / self._counts[name]) for name in names]
        return len(agree) >= _AGREE and all(agree)

    def _is_an_earlier_one(self, row: Row) -> bool:
        """Early stopping writes the row of its best epoch once more; the last row repeated is a model that stands still."""
        at = self._seen.get(_measured(row))
        digits = [_digits(value) for name, value in row.items() if self._varies(name) and not _position(name)]
        return at is not None and at < self._rows and len(digits) >= _AGREE and sum(digits) >= _DIGITS

    def _varies(self, name: str) -> bool:
        low, high = self._ranges.get(name, (0.0, 0.0))
        return high > low


def _measured(row: Row) -> tuple[tuple[str, float], ...]:
    return tuple((name, value) for name, value in row.items() if not _position(name))


def _position(name: str) -> bool:
    return name.strip().lower() in (*STEP_NAMES, *EPOCH_NAMES)


def _close(value: float, other: float) -> bool:
    return math.isfinite(other) and abs(value - other) <= _ROUNDING * max(abs(other), 1e-12)


def _digits(value: float) -> int:
    """How many digits a number has that say something."""
    return len(repr(value).partition("e")[0].replace(".", "").strip("-0")) if math.isfinite(value) else 0
