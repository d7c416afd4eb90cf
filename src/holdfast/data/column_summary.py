"""What is known of a column after all its chunks went by: counts, range, moments, a sample of its values, its oddities."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.data.checks.split_statistics import Spread
from holdfast.data.columns import Array, Column
from holdfast.data.row_hash import words_of

SENTINELS = (-99.0, 999.0, -999.0, 9999.0, -9999.0, 99999.0, -99999.0, 999999.0, -999999.0, 1e20, -1e20, 1e30, -1e30)
MOST_DISTINCT = 4096
_SAMPLE = 8192
_END = 0.02
_SPARSE = 0.2  # of the values: where fewer differ from the most frequent one, they alone say how sure its statistics are
_PLACES = 10_000  # rows with something wrong that are remembered
_FLOAT32 = float(np.finfo(np.float32).max)
_NUMBERS = "iuf"
_LONG = 200  # letters of a text, of which more are not kept


class ColumnSummary:
    """Takes chunk after chunk of one column; its size does not depend on how many there are.

    A chunk may have another type than the one before: whole numbers with gaps are read as floats. `dtype` can hold all that
    came, `whole` all whole numbers; it is None where there are none.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.whole: np.dtype[Any] | None = None
        self.rows = self.count = self.nan = self.inf = self.beyond_float32 = self.at_limits = 0
        self.low, self.high = math.inf, -math.inf
        self.mean, self._squares, self._finite = 0.0, 0.0, 0
        self.bad_rows: list[int] = []
        self.bad_places: list[tuple[str, int]] = []  # of the same rows: the file, and their number in it
        self.sentinels: dict[float, int] = {}
        self.low_without, self.high_without = math.inf, -math.inf  # the range without values that may be sentinels
        self.sample: npt.NDArray[np.float64] = np.empty(0)
        self._sampled = 0
        self.distinct: set[Any] | None = set()
        self._chance = np.random.default_rng(0)

    @property
    def is_number(self) -> bool:
        """Whether the column holds numbers."""
        return self.dtype.kind in _NUMBERS

    @property
    def spread(self) -> Spread:
        """Mean and deviation of the finite values."""
        return Spread(self._finite, self.mean, math.sqrt(max(self._squares, 0.0) / max(self._finite, 1)))

    @property
    def usual_spread(self) -> Spread:
        """The same without what a few odd values do to it: sentinels left out, the ends cut to where 96 % of a sample lie."""
        some = self.sample[(self.sample >= self.low_without) & (self.sample <= self.high_without)]
        if not len(some):
            return Spread(0, 0.0, 0.0)
        telling = int(np.count_nonzero(some != np.median(some)))
        number = telling if 0 < telling < _SPARSE * len(some) else len(some)
        some = np.clip(some, *np.quantile(some, (_END, 1 - _END)))
        return Spread(number, float(some.mean()), float(some.std()))

    def add(self, column: Column, file: str = "", numbers: npt.NDArray[np.int64] | None = None) -> None:
        """The next rows; `numbers` are those that they have in their file, by which bad ones are found again."""
        values = column.values.ravel() if column.values.ndim > 1 else column.values
        if len(values):
            values = values.astype(values.dtype.newbyteorder("="), copy=False)
            self._widen(values.dtype)
            self._add_distinct(values)
            if values.dtype.kind in _NUMBERS:
                before = len(self.bad_rows)
                self._add_numbers(column, values)
                if numbers is not None:
                    self.bad_places += [(file, int(numbers[row - self.rows])) for row in self.bad_rows[before:]]
        self.rows += column.rows
        self.count += len(values)

    def _widen(self, dtype: np.dtype[Any]) -> None:
        self.dtype = _wider(self.dtype, dtype) if self.count else dtype
        if dtype.kind in "iu":
            whole = _wider(self.whole, dtype) if self.whole is not None else dtype
            if whole != self.whole:
                self.whole, self.at_limits = whole, 0  # the limits of a narrower type are none of this one

    def _add_distinct(self, values: Array) -> None:
        if self.distinct is None:
            return
        self.distinct.update(map(_shortened, value_counts(values, MOST_DISTINCT + 1)))
        if len(self.distinct) > MOST_DISTINCT:
            self.distinct = None

    def _add_numbers(self, column: Column, values: Array) -> None:
        if values.dtype.kind == "f":
            good = np.isfinite(values)
            if not good.all():
                self._add_bad(column, good, values)
                values = values[good]
        elif values.dtype == self.whole and values.dtype.itemsize < 8:
            limits = np.iinfo(values.dtype)
            self.at_limits += int((values == limits.max).sum() + (values == limits.min).sum() * (limits.min < 0))
        if not len(values):
            return
        numbers = values.astype(np.float64)
        self.low, self.high = min(self.low, float(numbers.min())), max(self.high, float(numbers.max()))
        if values.dtype == np.float64:
            self.beyond_float32 += int((np.abs(numbers) > _FLOAT32).sum())
        self._add_moments(numbers)
        self._add_sentinels(numbers)
        self._add_to_sample(numbers)

    def _add_to_sample(self, numbers: npt.NDArray[np.float64]) -> None:
        """Each value has the same chance to be in the sample, in whatever chunk it comes: rows may be sorted."""
        before, self._sampled = self._sampled, self._sampled + len(numbers)
        if self._sampled <= _SAMPLE:
            self.sample = np.concatenate([self.sample, numbers])
            return
        new = int(self._chance.binomial(_SAMPLE, len(numbers) / self._sampled))
        new = min(max(new, _SAMPLE - before), len(numbers), _SAMPLE)
        old = self._chance.choice(self.sample, min(_SAMPLE - new, len(self.sample)), replace=False)
        self.sample = np.concatenate([old, self._chance.choice(numbers, new, replace=False)])

    def _add_bad(self, column: Column, good: npt.NDArray[np.bool_], values: Array) -> None:
        nan = int(np.isnan(values).sum())
        self.nan += nan
        self.inf += int((~good).sum()) - nan
        if len(self.bad_rows) >= _PLACES:
            return
        places = np.flatnonzero(~good)
        if column.counts is not None:
            places = np.searchsorted(np.cumsum(column.counts), places, side="right")
        elif column.values.ndim > 1:
            places = places // (column.values.size // max(len(column.values), 1))
        self.bad_rows += (self.rows + np.unique(places)[: _PLACES - len(self.bad_rows)]).tolist()

    def _add_moments(self, numbers: npt.NDArray[np.float64]) -> None:
        """Join the moments of these numbers to those before (Chan); huge values are left out, as their squares are infinite."""
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(numbers.mean())
            squares = float(((numbers - mean) ** 2).sum())
        if not math.isfinite(squares):
            return
        total = self._finite + len(numbers)
        apart = mean - self.mean
        self._squares += squares + apart * apart * self._finite * len(numbers) / total
        self.mean += apart * len(numbers) / total
        self._finite = total

    def _add_sentinels(self, numbers: npt.NDArray[np.float64]) -> None:
        suspects = np.isin(numbers, SENTINELS)
        rest = numbers[~suspects]
        if len(rest):
            self.low_without = min(self.low_without, float(rest.min()))
            self.high_without = max(self.high_without, float(rest.max()))
        for value, count in zip(*np.unique(numbers[suspects], return_counts=True), strict=True):
            self.sentinels[float(value)] = self.sentinels.get(float(value), 0) + int(count)


def value_counts(values: Array, most: int) -> dict[Any, int]:
    """How often each value is there, of at most so many; NaN is one value."""
    if values.dtype.kind == "O":
        return dict(itertools.islice(Counter(words_of(values)).items(), most))
    found, counts = np.unique(values, return_counts=True)
    kinds = (value if value == value else math.nan for value in found[:most].tolist())
    return dict(zip(kinds, counts[:most].tolist(), strict=True))


def _shortened(value: Any) -> Any:
    """A long text by its beginning and its hash: texts are kept to tell them apart, and may be as large as books."""
    return value if not isinstance(value, str) or len(value) <= _LONG else f"{value[:_LONG]} {hash(value)}"


def _wider(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """A type that can hold the values of both."""
    try:
        return np.promote_types(one, other)
    except TypeError:
        return np.dtype(object)
