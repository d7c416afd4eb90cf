"""What is known of a column after all its chunks went by: counts, range, moments, a sample of its values, its oddities."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.data.columns import Array, Chunk, Column
from holdfast.data.stats.figures import Distribution, Spread

# A 64-bit number for each row of a chunk: equal rows have equal numbers, and others practically never do.

Numbers = npt.NDArray[Any]  # of 64 bits
_STEP = np.uint64(0x9E3779B97F4A7C15)
_ONE, _TWO = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_EXACT = 2.0**53  # whole numbers below are the same as float64


def row_numbers(chunk: Chunk, names: Iterable[str]) -> Numbers:
    """The numbers of all rows, from these columns."""
    rows = next(iter(chunk.values())).rows
    total = np.zeros(rows, np.uint64)
    for name in names:
        total = _mixed(total * _STEP + _of_column(chunk[name]))
    return total


def _mixed(values: Numbers) -> Numbers:
    """Spread every bit over all 64 (the last steps of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * _ONE
    values = (values ^ (values >> np.uint64(27))) * _TWO
    mixed: Numbers = values ^ (values >> np.uint64(31))
    return mixed


def _of_column(column: Column) -> Numbers:
    values = _as_numbers(column.values)
    if column.counts is not None:
        return _of_jagged(values, column.counts)
    if values.ndim == 1:
        return _mixed(values)
    flat = values.reshape(len(values), -1)
    places = _mixed(np.arange(flat.shape[1], dtype=np.uint64) * _STEP + _STEP)
    sums: Numbers = _mixed(flat ^ places).sum(axis=1, dtype=np.uint64)
    return sums


def _of_jagged(values: Numbers, counts: npt.NDArray[np.int64]) -> Numbers:
    starts = np.cumsum(counts) - counts
    places = (np.arange(len(values)) - np.repeat(starts, counts)).astype(np.uint64)
    mixed = _mixed(values ^ _mixed(places * _STEP + _STEP))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    return _mixed(sums[starts + counts] - sums[starts] + counts.astype(np.uint64))


def _as_numbers(values: Array) -> Numbers:
    """The bits of each value as float64: a column of whole numbers is read as one of floats where a chunk has gaps."""
    if values.dtype.kind not in "iufb":
        return _of_words(values)
    floats = values.astype(np.float64) + 0.0  # + 0.0: minus zero is zero
    floats[np.isnan(floats)] = np.nan  # there are many kinds of NaN
    bits: Numbers = floats.view(np.uint64)
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        large = np.abs(floats) >= _EXACT
        bits[large] = values[large].astype(np.int64 if values.dtype.kind == "i" else np.uint64).view(np.uint64)
    return bits


def _of_words(values: Array) -> Numbers:
    """Each different word is hashed once."""
    texts = words_of(values)
    hashes = {word: _of_word(word) for word in set(texts)}
    return np.fromiter((hashes[word] for word in texts), np.uint64, len(texts)).reshape(values.shape)


def _of_word(word: str | bytes) -> int:
    content = word if isinstance(word, bytes) else word.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def words_of(values: Array) -> list[str | bytes]:
    """The values as words, each as long as it is. In an array of NumPy's words each would take as much room as the longest."""
    plain = values if values.dtype.kind in "OUS" else values.astype(str)
    return [value if isinstance(value, (str, bytes)) else str(value) for value in plain.ravel().tolist()]


SENTINELS = (-99.0, 999.0, -999.0, 9999.0, -9999.0, 99999.0, -99999.0, 999999.0, -999999.0, 1e20, -1e20, 1e30, -1e30)
MOST_DISTINCT = 4096
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
        self.values = Distribution()  # the finite ones
        self.low_place: tuple[str, int] | None = None  # file and row, where a row has one value
        self.high_place: tuple[str, int] | None = None
        self.bad_rows: list[int] = []
        self.bad_places: list[tuple[str, int]] = []  # of the same rows: the file, and their number in it
        self.sentinels: dict[float, int] = {}
        self.low_without, self.high_without = math.inf, -math.inf  # the range without values that may be sentinels
        self.distinct: set[Any] | None = set()

    @property
    def is_number(self) -> bool:
        """Whether the column holds numbers."""
        return self.dtype.kind in _NUMBERS

    @property
    def usual_spread(self) -> Spread:
        """The same without what a few odd values do to it: sentinels left out, the ends cut to where 96 % of a sample lie."""
        some = self.values.sample()
        some = some[(some >= self.low_without) & (some <= self.high_without)]
        if not len(some):
            return Spread(0, 0.0, 0.0)
        telling = int(np.count_nonzero(some != np.median(some)))
        number = telling if 0 < telling < _SPARSE * len(some) else len(some)
        some = np.clip(some, *np.quantile(some, (_END, 1 - _END)))
        return Spread(number, float(some.mean()), float(some.std()))

    def add(self, column: Column, file: str = "", rows: npt.NDArray[np.int64] | None = None, split: str = "all") -> None:
        """The next rows; `numbers` are those that they have in their file, by which bad ones are found again."""
        values = column.values.ravel() if column.values.ndim > 1 else column.values
        if len(values):
            values = values.astype(values.dtype.newbyteorder("="), copy=False)
            self._widen(values.dtype)
            if values.dtype.kind in _NUMBERS:
                self._add_numbers(column, values, split, file, rows)
            else:
                self._add_distinct(value_counts(values, MOST_DISTINCT + 1))
        self.rows += column.rows
        self.count += len(values)

    def _add_distinct(self, values: Collection[Any]) -> None:
        """Different values of a chunk, until they are too many."""
        if self.distinct is not None:
            self.distinct = self.distinct | set(map(_shortened, values)) if len(values) <= MOST_DISTINCT else None
            self.distinct = self.distinct if self.distinct and len(self.distinct) <= MOST_DISTINCT else None

    def _widen(self, dtype: np.dtype[Any]) -> None:
        self.dtype = _wider(self.dtype, dtype) if self.count else dtype
        if dtype.kind in "iu":
            whole = _wider(self.whole, dtype) if self.whole is not None else dtype
            if whole != self.whole:
                self.whole, self.at_limits = whole, 0  # the limits of a narrower type are none of this one

    def _add_numbers(self, column: Column, values: Array, split: str, file: str, rows: npt.NDArray[np.int64] | None) -> None:
        """All that is counted comes from the different values and how often each is there: they are sorted once."""
        good = np.isfinite(values) if values.dtype.kind == "f" else None
        if good is not None and not good.all():
            self._add_bad(column, good, values, file, rows)
        else:
            good = None
        distinct, counts = np.unique(values if good is None else values[good], return_counts=True)
        odd = {math.nan, math.inf} if good is not None else set()
        self._add_distinct({*distinct.tolist(), *odd} if len(distinct) <= MOST_DISTINCT else distinct)
        if not len(distinct):
            return
        if values.dtype == self.whole and values.dtype.itemsize < 8:
            limits = np.iinfo(values.dtype)
            self.at_limits += int(counts[distinct == limits.max].sum() + counts[distinct == limits.min].sum() * (limits.min < 0))
        if rows is not None and column.counts is None and column.values.ndim == 1:
            if distinct[0] < self.values.low:
                self.low_place = file, int(rows[np.flatnonzero(values == distinct[0])[0]])
            if distinct[-1] > self.values.high:
                self.high_place = file, int(rows[np.flatnonzero(values == distinct[-1])[0]])
        different = distinct.astype(np.float64)
        self.values.add(split, different, counts)
        if values.dtype == np.float64 and max(-different[0], different[-1]) > _FLOAT32:
            self.beyond_float32 += int(counts[np.abs(different) > _FLOAT32].sum())
        self._add_sentinels(different, counts)

    def _add_bad(
        self, column: Column, good: npt.NDArray[np.bool_], values: Array, file: str, rows: npt.NDArray[np.int64] | None
    ) -> None:
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
        places = np.unique(places)[: _PLACES - len(self.bad_rows)]
        self.bad_rows += (self.rows + places).tolist()
        self.bad_places += [(file, int(row)) for row in rows[places]] if rows is not None else []

    def _add_sentinels(self, different: npt.NDArray[np.float64], counts: npt.NDArray[np.int64]) -> None:
        """Sorted values: those that may be sentinels are counted, and the range of the others is kept."""
        places = np.searchsorted(different, SENTINELS).clip(max=len(different) - 1)
        there = np.unique(places[different[places] == SENTINELS])
        for place in there.tolist():
            value = float(different[place])
            self.sentinels[value] = self.sentinels.get(value, 0) + int(counts[place])
        rest = np.delete(different, there) if len(there) else different
        if len(rest):
            self.low_without, self.high_without = min(self.low_without, rest[0]), max(self.high_without, rest[-1])


def value_counts(values: Array, most: int) -> dict[Any, int]:
    """How often each value is there, of at most so many; NaN is one value."""
    if values.dtype.kind == "O":
        return dict(itertools.islice(Counter(words_of(values)).items(), most))
    distinct, counts = np.unique(values, return_counts=True)
    kinds = (value if value == value else math.nan for value in distinct[:most].tolist())
    return dict(zip(kinds, counts[:most].tolist(), strict=True))


def _shortened(value: Any) -> Any:
    """A long text by its beginning and its hash: texts are kept to tell them apart, and may be as large as books."""
    return value if not isinstance(value, str) or len(value) <= _LONG else f"{value[:_LONG]} {hash(value)}"


def _wider(before: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """A type that can hold the values of both."""
    try:
        return np.promote_types(before, other)
    except TypeError:
        return np.dtype(object)
