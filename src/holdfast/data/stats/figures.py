"""What statistics are made of: counts by name, histograms, grids. The terminal, the page and JSON hold the same ones."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from holdfast.data.listing import order_of

# Values that are counted while they go by, in memory that does not grow with them: whole numbers, or sizes of any scale.

BINS = 32
_RARE = 0.002  # share of values at the end of a long tail that get no bins of their own
_MOST = 100_000  # different whole numbers
_STEPS = 32  # of a size, while it doubles


class Values:
    """Counts of one quantity by split. With `growing`, values are rounded to a 32nd of an octave: 2 %."""

    def __init__(self, *, growing: bool = False) -> None:
        self._growing = growing
        self._counts: dict[str, Counter[int]] = {}
        self._low, self._high = math.inf, -math.inf
        self._number, self._mean, self._squares = 0, 0.0, 0.0

    @property
    def number(self) -> int:
        """How many there are."""
        return self._number

    @property
    def by_split(self) -> dict[str, Counter[int]]:
        """The counts of each value, by split."""
        return self._counts

    def add(self, split: str, value: float, times: int = 1) -> None:
        """One value, or the same one several times; with `growing` it must be above zero."""
        self._keep(split, round(math.log2(value) * _STEPS) if self._growing else int(value), times)
        self._low, self._high = min(self._low, value), max(self._high, value)
        self._number += times
        apart = value - self._mean
        self._mean += apart * times / self._number
        self._squares += apart * (value - self._mean) * times

    def add_many(self, split: str, values: npt.NDArray[np.float64]) -> None:
        """Many values at once."""
        if not len(values):
            return
        keys = np.rint(np.log2(values) * _STEPS) if self._growing else values
        for key, times in zip(*np.unique(keys.astype(np.int64), return_counts=True), strict=True):
            self._keep(split, int(key), int(times))
        self._low, self._high = min(self._low, float(values.min())), max(self._high, float(values.max()))
        total, apart = self._number + len(values), float(values.mean()) - self._mean
        self._squares += float(values.var()) * len(values) + apart * apart * self._number * len(values) / total
        self._mean += apart * len(values) / total
        self._number = total

    def _keep(self, split: str, key: int, times: int) -> None:
        counts = self._counts.get(split)
        if counts is None:
            counts = self._counts[split] = Counter()
        if key in counts or len(counts) < _MOST:
            counts[key] += times

    def median(self) -> float | None:
        """The middle one; None where there is none."""
        return self._value(_quantile(sum(self._counts.values(), Counter()), 0.5)) if self._number else None

    def histogram(self, key: str, title: str, unit: str, note: str = "") -> Histogram | None:
        """The figure; None where there is nothing."""
        if not self._number:
            return None
        total = sum(self._counts.values(), Counter())
        edges = _edges(total)
        made = {split: _counted(self._counts[split], edges) for split in sorted(self._counts, key=order_of)}
        outside = [sum(some[place] for some in made.values()) for place in (0, -1)]
        return Histogram(
            key=key, title=title, unit=unit, note=note, growing=self._growing,
            edges=[self._value(edge) for edge in edges], counts={split: some[1:-1] for split, some in made.items()},
            below=outside[0], above=outside[1], low=float(self._low), high=float(self._high), mean=self._mean,
            deviation=math.sqrt(max(self._squares, 0.0) / self._number), median=self._value(_quantile(total, 0.5)),
        )  # fmt: skip

    def _value(self, key: float) -> float:
        return 2.0 ** (key / _STEPS) if self._growing else float(key)


def _edges(counts: Counter[int]) -> list[float]:
    """Bins of whole numbers, each as wide as the others, for all but the rarest values."""
    low, high = _quantile(counts, _RARE), _quantile(counts, 1 - _RARE)
    if max(counts) - min(counts) < 2 * BINS or max(counts) - min(counts) < 1.5 * (high - low):
        low, high = min(counts), max(counts)
    step = max(1, math.ceil((high - low + 1) / BINS))
    bins = math.ceil((high - low + 1) / step)
    return [low - 0.5 + step * place for place in range(bins + 1)]


def _quantile(counts: Counter[int], share: float) -> int:
    keys = sorted(counts)
    sums = np.cumsum([counts[key] for key in keys])
    return keys[int(np.searchsorted(sums, share * sums[-1]))]


def _counted(counts: Counter[int], edges: list[float]) -> list[int]:
    """What lies below, in each bin, and above."""
    made = [0] * (len(edges) + 1)
    step = edges[1] - edges[0]
    for key, count in counts.items():
        place = math.floor((key - edges[0]) / step)
        made[min(max(place, -1), len(edges) - 1) + 1] += count
    return made


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
    made: dict[str, type[Figure]] = {one.kind: one for one in (Bars, Histogram, Grid)}
    return made[row["kind"]](**fields)
