"""What statistics are made of: counts by name, histograms, grids. The terminal, the page and JSON hold the same ones."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from holdfast.data.listing import order_of
from holdfast.data.problem import Answer, Fault, restored

Numbers = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Key = TypeVar("Key")


@dataclass(slots=True, kw_only=True)
class Bars:
    """Counts by name and split, the most important first."""

    kind: ClassVar[str] = "bars"
    key: str  # stable, for programs
    title: str
    unit: str
    counts: dict[str, dict[str, int]]  # name, then split
    columns: dict[str, dict[str, int]] = field(default_factory=dict)  # what else is known of a name: title, then name
    others: int = 0  # names that are too many to be listed, and what was counted of them
    of_others: int = 0
    note: str = ""

    @property
    def totals(self) -> dict[str, int]:
        """Counts by name, of all splits."""
        return {name: sum(some.values()) for name, some in self.counts.items()}

    @property
    def whole(self) -> int:
        """All that was counted, also of names that are not listed."""
        return sum(self.totals.values()) + self.of_others


def bars(
    key: str, title: str, unit: str, counts: Mapping[str, Counter[Key]], *,
    kinds: Sequence[Key] | None = None, name: Callable[[Key], str] = str, most: int | None = None, note: str = "",
) -> Bars:  # fmt: skip
    """Counts that are there by split: of `kinds`, or the most frequent first; beyond `most` they are only counted."""
    total: Counter[Key] = sum(counts.values(), Counter())
    kinds = [kind for kind, _ in total.most_common()] if kinds is None else kinds
    rest = kinds[most:] if most is not None else []
    splits = sorted(counts, key=order_of)
    listed = {name(kind): {split: counts[split][kind] for split in splits} for kind in kinds[:most]}
    of_others = sum(total[kind] for kind in rest)
    return Bars(key=key, title=title, unit=unit, counts=listed, others=len(rest), of_others=of_others, note=note)


@dataclass(slots=True, kw_only=True)
class Histogram:
    """How values are spread. `edges` has one more than each row of `counts`; what lies outside is in `below` and `above`."""

    kind: ClassVar[str] = "histogram"
    key: str
    title: str
    unit: str
    edges: list[float]
    counts: dict[str, list[int]]  # split, then bin
    below: int = 0
    above: int = 0
    nan: int = 0
    inf: int = 0
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    deviation: float | None = None
    median: float | None = None
    growing: bool = False  # each bin is wider than the one before by the same factor
    note: str = ""

    @property
    def totals(self) -> list[int]:
        """Counts of all splits together."""
        return [sum(some) for some in zip(*self.counts.values(), strict=True)]


@dataclass(slots=True, kw_only=True)
class Grid:
    """Numbers in rows and columns: a `map` of a place in the image, or `pairs` of names."""

    kind: ClassVar[str] = "grid"
    key: str
    title: str
    unit: str
    shape: Literal["map", "pairs"]
    values: list[list[float]]
    names: list[str] = field(default_factory=list)  # of rows and columns, for pairs
    note: str = ""

    @property
    def most_together(self) -> float:
        """The largest number of two different names; 1 where none come together."""
        return (
            max((value for down, row in enumerate(self.values) for across, value in enumerate(row) if across != down), default=0)
            or 1
        )


Figure = Bars | Histogram | Grid


def as_row(figure: Figure) -> dict[str, Any]:
    """For JSON."""
    return {"kind": figure.kind, **asdict(figure)}


def from_row(row: dict[str, Any]) -> Figure:
    """The figure that was made into a row."""
    fields = {key: value for key, value in row.items() if key != "kind"}
    made: dict[str, type[Figure]] = {figure.kind: figure for figure in (Bars, Histogram, Grid)}
    return made[row["kind"]](**fields)


class Spread(NamedTuple):
    """How many numbers there are, their mean and their standard deviation."""

    number: int
    mean: float
    deviation: float


BINS = 32
_KEYS = 1 << 13  # different values of a split that are told apart
_AT_ONCE = 1 << 16  # values that are counted together
_WAITING = 1 << 12  # values that wait for more
_SAMPLE = 8192
_RARE = 0.005  # share of values at each end that may stay outside of the bins
_AROUND = 0.25  # of the width of all others, which is added at each end
_DECADES, _TO_THE_LEFT = 100.0, 0.05  # bins grow where values span more, and the middle one lies so near to the first
_TINY = 1e-300


class Distribution:
    """Numbers that are counted by split while they go by, in memory that does not grow with them.

    Range, mean and deviation are exact. So are the counts of up to 8,192 different values; of more, neighbours are joined, as
    the last bits of their mantissas are dropped.
    """

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self.number, self._whole = 0, True  # whether all are whole numbers
        self._measured, self._mean, self._squares = 0, 0.0, 0.0
        self._waiting: dict[str, list[tuple[Numbers, Whole]]] = {}
        self._waits = 0
        self._counts: dict[str, tuple[Whole, Whole, int]] = {}  # keys, counts, dropped bits

    def add(self, split: str, values: npt.ArrayLike, times: npt.ArrayLike | None = None) -> None:
        """Finite numbers, each so many times."""
        flat = np.asarray(values).ravel()
        counts = np.ones(len(flat), np.int64) if times is None else np.asarray(times, np.int64)
        for start in range(0, len(flat), _AT_ONCE):
            some = flat[start : start + _AT_ONCE].astype(np.float64) + 0.0  # minus zero is zero
            self.low, self.high = min(self.low, float(some.min())), max(self.high, float(some.max()))
            self.number += int(counts[start : start + _AT_ONCE].sum())
            self._whole = self._whole and self.high - self.low < 1e15 and bool((some == np.round(some)).all())
            self._waiting.setdefault(split, []).append((some, counts[start : start + _AT_ONCE]))
            self._waits += len(some)
            if self._waits >= _WAITING:
                self._count()

    def add_counts(self, counts: Mapping[str, Mapping[int, int]]) -> Distribution:
        """Whole numbers by split, with how often each was met."""
        for split, some in counts.items():
            self.add(split, list(some), list(some.values()))
        return self

    def _count(self) -> None:
        waiting, self._waiting, self._waits = self._waiting, {}, 0
        for split, some in waiting.items():
            values, times = (np.concatenate(parts) for parts in zip(*some, strict=True))
            self._measure(values, times)
            keys, counts, dropped = self._counts.get(split, (np.zeros(0, np.int64), np.zeros(0, np.int64), 0))
            new = _ordered_bits(values) >> dropped
            keys, counts = _joined(np.concatenate([keys, new]), np.concatenate([counts, times]))
            more = 0
            if len(keys) > _KEYS:
                more = bisect_left(range(64), True, key=lambda bits: bool(np.count_nonzero(np.diff(keys >> bits)) < _KEYS // 2))
            self._counts[split] = (*(_joined(keys >> more, counts) if more else (keys, counts)), dropped + more)

    def _measure(self, values: Numbers, times: Whole) -> None:
        """Join the moments of these numbers to those before (Chan); huge values are left out, as their squares are infinite."""
        number = int(times.sum())
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float((values * times).sum()) / number
            squares = float(((values - mean) ** 2 * times).sum())
        if math.isfinite(squares):
            total, away = self._measured + number, mean - self._mean
            self._squares += squares + away * away * self._measured * number / total
            self._mean += away * number / total
            self._measured = total

    @property
    def spread(self) -> Spread:
        """Mean and deviation."""
        self._count()
        return Spread(self._measured, self._mean, math.sqrt(max(self._squares, 0.0) / max(self._measured, 1)))

    def _values(self, splits: Iterable[str]) -> tuple[Numbers, Whole]:
        """The different values of some splits, sorted, with their counts."""
        parts = []
        for keys, counts, dropped in (self._counts[split] for split in splits):
            middle = (keys << dropped) + ((1 << dropped) >> 1)
            parts.append((np.clip(_from_ordered_bits(middle), self.low, self.high), counts))
        values, times = (np.concatenate(some) for some in zip(*parts, strict=True)) if parts else (np.zeros(0), np.zeros(0, int))
        order = np.argsort(values, kind="stable")
        return values[order], times[order]

    def sample(self) -> Numbers:
        """All numbers, sorted; of more than 8,192 so many that lie as these do."""
        self._count()
        values, times = self._values(self._counts)
        ranks = (np.arange(min(self.number, _SAMPLE)) + 0.5) * max(1.0, self.number / _SAMPLE)
        return values[np.searchsorted(np.cumsum(times), ranks)]

    def median(self) -> float | None:
        """The middle one; None where there is none."""
        sample = self.sample()
        return float(np.median(sample)) if len(sample) else None

    def histogram(
        self, key: str, title: str, unit: str = "", note: str = "", *, growing: bool = False, nan: int = 0, inf: int = 0
    ) -> Histogram:
        """The figure; with `growing` its bins grow, otherwise only where the values ask for it."""
        sample = self.sample()
        edges, growing = self._edges(sample, growing=growing) if self.number else (np.array([0.0, 1.0]), False)
        made = Histogram(key=key, title=title, unit=unit, note=note, edges=edges.tolist(), counts={}, nan=nan, inf=inf)
        for split in sorted(self._counts, key=order_of):
            below, *bins, above = self._counted(split, edges)
            made.counts[split], made.below, made.above = bins, made.below + below, made.above + above
        if self.number:
            _, made.mean, made.deviation = self.spread
            made.low, made.high, made.median, made.growing = self.low, self.high, self.median(), growing
        return made

    def _counted(self, split: str, edges: Numbers) -> list[int]:
        """What lies below, in each bin, and above; values that were joined are taken to lie evenly between their neighbours."""
        keys, counts, dropped = self._counts[split]
        if not dropped:
            values = _from_ordered_bits(keys)
            inside = np.histogram(values, edges, weights=counts)[0].astype(int).tolist()
            return [int(counts[values < edges[0]].sum()), *inside, int(counts[values > edges[-1]].sum())]
        ends = np.stack([keys << dropped, ((keys + 1) << dropped) - 1], axis=1).ravel()
        sums = np.cumsum(np.stack([np.zeros(len(counts), np.int64), counts], axis=1).ravel())
        below = np.rint(np.interp(edges, np.clip(_from_ordered_bits(ends), self.low, self.high), sums)).astype(int)
        return [int(count) for count in np.diff([0, *below, sums[-1]])]

    def _edges(self, sample: Numbers, *, growing: bool) -> tuple[Numbers, bool]:
        """Bins for all but the rarest values, and whether they grow."""
        low, high = self.low, self.high
        first, middle, last = np.quantile(sample, (_RARE, 0.5, 1 - _RARE)).tolist()
        few = self._whole and high - low < 2 * BINS
        if first < last and not few and not growing:  # else nearly all are one value: the others are to be seen
            around = _AROUND * (last - first)
            low, high = max(low, first - around), min(high, last + around)
        if self._whole and not growing:
            step = max(1, math.ceil((math.ceil(high) - math.floor(low) + 1) / BINS))
            bins = max(1, math.ceil((math.ceil(high) - math.floor(low) + 1) / step))
            return math.floor(low) - 0.5 + step * np.arange(bins + 1, dtype=np.float64), False
        if not low < high:
            wide = max(abs(low) * 1e-3, _TINY)
            return np.array([low - wide, low + wide]), False
        skewed = first > 0 and last > _DECADES * first and middle - first < _TO_THE_LEFT * (last - first)
        if growing or skewed:
            return np.geomspace(max(low if growing else max(low, first / 2), _TINY), high, BINS + 1), True
        return 4 * np.linspace(low / 4, high / 4, BINS + 1), False  # the distance of the largest numbers is not finite


def _joined(keys: Whole, times: Whole) -> tuple[Whole, Whole]:
    """Each key once, with how often it is there. Parts that are sorted already are only merged."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    return keys[first], np.add.reduceat(times[order], first)


def _ordered_bits(values: Numbers) -> Whole:
    """The bits of each number as a whole number, in the same order."""
    bits = values.view(np.int64)
    return np.where(bits < 0, bits ^ np.int64(0x7FFFFFFFFFFFFFFF), bits)


def _from_ordered_bits(keys: Whole) -> Numbers:
    return np.where(keys < 0, keys ^ np.int64(0x7FFFFFFFFFFFFFFF), keys).view(np.float64)


_NAMED = 1000
_NOT_READ = frozenset({"image-empty", "array-pickled", "image-missing", "split-missing", "path-outside"})


@dataclass(slots=True, kw_only=True)
class Statistics(Answer):
    """The answer of `holdfast stats`. `unreadable` names the first thousand files that could not be read, and why."""

    classes: list[str] = field(default_factory=list)  # that were asked for; empty: all
    figures: list[Figure] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    unreadable_count: int = 0

    def add_faults(self, faults: Iterable[Fault], *, decoded: bool = False) -> None:
        """Count and name the files among them that could not be read; what else is wrong is for `holdfast validate`."""
        for fault in faults:
            if fault.code.endswith("-unreadable") or fault.code in _NOT_READ or (decoded and fault.code == "image-truncated"):
                place = fault.place
                self.unreadable_count += place not in self.unreadable
                if len(self.unreadable) < _NAMED:
                    self.unreadable.setdefault(place, fault.detail)

    def as_row(self) -> dict[str, Any]:
        """For JSON."""
        return {**Answer.as_row(self), "figures": [as_row(figure) for figure in self.figures]}


def statistics_from(row: dict[str, Any]) -> Statistics:
    """The statistics that were made into a row."""
    return Statistics(**{**restored(row), "figures": [from_row(figure) for figure in row["figures"]]})
