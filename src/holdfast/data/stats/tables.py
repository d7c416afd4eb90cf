"""Statistics of tables, arrays, trees and torch data sets: read in chunks, never as a whole.

Files are read twice: for the range of every column, then for the bins. A data set of code is gone through once, since it may be
slow, change, or run dry: its bins are chosen from its first chunk.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.data.column_summary import ColumnSummary
from holdfast.data.columns import Chunk, Column, TableSet, by_split, label_column, taken
from holdfast.data.listing import order_of
from holdfast.data.scan import Progress
from holdfast.data.stats.figures import Bars, Figure, Histogram, Values
from holdfast.data.stats.report import Statistics
from holdfast.errors import UsageError

# Bins for the values of a column: chosen from its range and a sample of it, then filled chunk after chunk.

BINS = 32
_RARE = 0.005  # share of values at each end that may stay outside
_AROUND = 0.25  # of the width of all others, which is added at each end
_DECADES = 100.0  # from small to large, above which bins may grow
_TINY, _HUGE = 1e-300, 1e308
_TO_THE_LEFT = 0.05  # where the middle then lies


class Bins:
    """The edges, and counts by split. With `ahead`, values may come that the summary has not seen: more bins, `trimmed` later."""

    def __init__(self, summary: ColumnSummary, *, ahead: bool = False) -> None:
        self.growing, self.whole = False, _is_whole(summary)
        self.edges = self._edges(summary, ahead)
        self.counts: dict[str, npt.NDArray[np.int64]] = {}
        self.below = self.above = 0

    def _edges(self, summary: ColumnSummary, ahead: bool) -> npt.NDArray[np.float64]:
        low, high = summary.low, summary.high
        if not low <= high or not len(summary.sample):
            return np.array([0.0, 1.0])
        if ahead:
            low, high = max(2 * low - high, -_HUGE), min(2 * high - low, _HUGE)
        bins = 3 * BINS if ahead else BINS
        first, middle, last = np.quantile(summary.sample, (_RARE, 0.5, 1 - _RARE)).tolist()
        around = (1.0 if ahead else _AROUND) * (last - first)
        if first < last:  # otherwise nearly all are one value, and the others are what is to be seen
            low, high = max(low, first - around), min(high, last + around)
        if self.whole:
            return _whole_edges(low, high, bins)
        if not low < high:
            wide = max(abs(low) * 1e-3, _TINY)
            return np.array([low - wide, low + wide])
        if first > 0 and last > _DECADES * first and middle - first < _TO_THE_LEFT * (last - first):
            self.growing = True
            return np.geomspace(max(low, first / 2, _TINY), high, bins + 1)
        return 4 * np.linspace(low / 4, high / 4, bins + 1)  # the distance of the largest numbers is none that is finite

    def add(self, split: str, values: npt.NDArray[Any]) -> None:
        """Count numbers; those that are not finite are left out."""
        numbers = values.astype(np.float64).ravel()
        numbers = numbers[np.isfinite(numbers)]
        inside = np.histogram(numbers, self.edges)[0]
        self.counts[split] = self.counts.get(split, np.zeros(len(self.edges) - 1, np.int64)) + inside
        self.below += int((numbers < self.edges[0]).sum())
        self.above += int((numbers > self.edges[-1]).sum())

    def median(self) -> float | None:
        """The middle of all values, read from the bins; None where it lies outside of them."""
        total = sum(self.counts.values(), np.zeros(len(self.edges) - 1, np.int64))
        sums = np.cumsum(total) + self.below
        half = (int(sums[-1]) + self.above) / 2
        place = int(np.searchsorted(sums, half))
        if half <= self.below or place >= len(total):
            return None
        left, right = float(self.edges[place]), float(self.edges[place + 1])
        if self.whole and right - left == 1:
            return left + 0.5
        return left + (right - left) * (half - float(sums[place] - total[place])) / float(total[place])

    def trimmed(self) -> None:
        """Drop empty bins at the ends, and join neighbours until they are few."""
        total = sum(self.counts.values(), np.zeros(len(self.edges) - 1, np.int64))
        there = np.flatnonzero(total)
        if not len(there):
            return
        first, last = int(there[0]), int(there[-1]) + 1
        step = -(-(last - first) // BINS)
        starts = np.arange(first, last, step)
        self.edges = self.edges[[*starts.tolist(), min(int(starts[-1]) + step, len(self.edges) - 1)]]
        self.counts = {split: np.add.reduceat(some, starts) for split, some in self.counts.items()}


def _is_whole(summary: ColumnSummary) -> bool:
    if summary.dtype.kind in "iu":
        return True
    sample = summary.sample
    return bool((np.abs(sample) < 1e15).all() and (sample == np.round(sample)).all())


def _whole_edges(low: float, high: float, most: int) -> npt.NDArray[np.float64]:
    first, last = math.floor(low), math.ceil(high)
    step = max(1, math.ceil((last - first + 1) / most))
    bins = max(1, math.ceil((last - first + 1) / step))
    return first - 0.5 + step * np.arange(bins + 1, dtype=np.float64)


# One column of a table, array or tree: its numbers in bins, or its words counted; and entries a row where those differ.

_MOST_WORDS = 4096  # different ones that are counted
_LISTED = 50
_OUTSIDE = 0.02  # of the values, above which bins that were chosen too early are given up for a sample


class ColumnCounts:
    """Takes the chunks of one column, in one pass, or in two: the first for its range, the second for its bins."""

    def __init__(self, name: str, first: Column) -> None:
        self.name = name
        self.summary = ColumnSummary(first.values.dtype)
        self.words: dict[str, Counter[str]] | None = None if self.summary.is_number else {}
        self._uncounted = 0
        self._entries = Values()
        self._bins: Bins | None = None
        self._ahead = False

    def add(self, split: str, column: Column) -> None:
        """Some rows, for all that needs one pass only."""
        if self.summary.is_number and column.values.dtype.kind in "iuf":
            self.summary.add(column)
        elif self.words is not None:
            self._add_words(self.words.setdefault(split, Counter()), column)
        if column.counts is not None:
            for length, times in zip(*np.unique(column.counts, return_counts=True), strict=True):
                self._entries.add(split, int(length), int(times))

    def _add_words(self, words: Counter[str], column: Column) -> None:
        for word, count in sorted(Counter(str(value) for value in column.values.ravel().tolist()).items()):
            if word in words or len(words) < _MOST_WORDS:
                words[word] += count
            else:
                self._uncounted += count

    def count(self, split: str, column: Column, *, ahead: bool = False) -> None:
        """The same rows again, for the bins; `ahead` where this is the only pass."""
        if not self.summary.is_number or column.values.dtype.kind not in "iuf":
            return
        if self._bins is None:
            self._bins, self._ahead = Bins(self.summary, ahead=ahead), ahead
        self._bins.add(split, column.values)

    def figures(self) -> Iterator[Figure]:
        """The column, and how long its rows are."""
        if self.words is not None:
            yield self._bars(self.words)
        else:
            yield self._histogram()
        entries = self._entries.histogram(f"entries:{self.name}", f"entries of {self.name}", "a row")
        yield from [entries] if entries else []

    def _bars(self, words: dict[str, Counter[str]]) -> Bars:
        total: Counter[str] = sum(words.values(), Counter())
        splits = sorted(words, key=order_of)
        counts = {word or "(empty)": {split: words[split][word] for split in splits} for word, _ in total.most_common(_LISTED)}
        more = " or more" if self._uncounted else ""
        return Bars(
            key=f"column:{self.name}", title=self.name, unit="values", counts=counts, note=f"{len(total):,}{more} different",
            others=max(0, len(total) - _LISTED), of_others=self._uncounted + sum(n for _, n in total.most_common()[_LISTED:]),
        )  # fmt: skip

    def _histogram(self) -> Histogram:
        summary, bins = self.summary, self._bins or Bins(self.summary)
        spread = summary.spread
        low, high = (summary.low, summary.high) if len(summary.sample) else (None, None)
        note = ""
        if self._ahead:
            bins.trimmed()
        if bins.below + bins.above > _OUTSIDE * max(summary.count, 1):
            bins, note = Bins(summary), f"bins: of {len(summary.sample):,} values"
            bins.add("sample", summary.sample)
        return Histogram(
            key=f"column:{self.name}", title=self.name, unit="", note=note, growing=bins.growing, edges=bins.edges.tolist(),
            counts={split: bins.counts[split].tolist() for split in sorted(bins.counts, key=order_of)},
            below=bins.below, above=bins.above, nan=summary.nan, inf=summary.inf,
            low=low, high=high,
            mean=spread.mean if spread.number else None, deviation=spread.deviation if spread.number else None,
            median=low if low == high else bins.median(),
        )  # fmt: skip


_MOST_CLASSES = 1000


def table_statistics(data: TableSet, *, label: str | None, only: frozenset[str], progress: Progress | None) -> Statistics:
    """Count all rows."""
    counts = TableCounts(label, only, once=data.format == "dataset")
    counts.read(data, progress)
    if label is not None and counts.columns and label not in counts.columns:
        raise UsageError(f"{data.root} has no column {label}", fix=f"one of: {', '.join(list(counts.columns)[:20])}")
    counts.check_names(data.root)
    report = Statistics(format=data.format, unit=data.unit, splits=counts.splits, notes=data.notes, classes=sorted(only))
    report.add_faults(data.faults)
    report.figures = list(counts.figures())
    return report


class TableCounts:
    """Takes chunk after chunk. With `only`, rows of other classes are left out."""

    def __init__(self, label: str | None, only: frozenset[str], *, once: bool) -> None:
        self._chosen, self._only, self._once = label, only, once
        self._label: str | None = None
        self._rows: Counter[str] = Counter()
        self._kinds: dict[str, Counter[str]] = {}
        self._too_many = False
        self.columns: dict[str, ColumnCounts] = {}

    def read(self, data: TableSet, progress: Progress | None) -> None:
        """Everything, in one pass or two; a part that breaks off counts as far as it could be read."""
        passes = 1 if self._once else 2
        for again in range(passes):
            shown = partial(_shown_of_pass, progress, again, passes) if progress else None
            for part, _, chunk in data.read(shown):
                for split, some in by_split(part.split, chunk):
                    self._take(split, some, again=bool(again))

    def _take(self, split: str, chunk: Chunk, *, again: bool) -> None:
        if not again:
            self._label = self._label or label_column(list(chunk), self._chosen)
            self._count_classes(split, chunk)
        chunk = self._wanted(chunk)
        if not again:
            self._rows[split] += _rows(chunk)
        for name, column in chunk.items():
            counts = self.columns.get(name)
            if counts is None:
                counts = self.columns[name] = ColumnCounts(name, column)
            if not again:
                counts.add(split, column)
            if again or self._once:
                counts.count(split, column, ahead=self._once)

    def _wanted(self, chunk: Chunk) -> Chunk:
        """The rows of the classes that were asked for."""
        if not self._only or self._label not in chunk:
            return chunk
        kinds = _classes(chunk[self._label])
        return taken(chunk, np.isin(kinds, list(self._only))) if kinds is not None else chunk

    def _count_classes(self, split: str, chunk: Chunk) -> None:
        if self._label not in chunk or self._too_many:
            return
        kinds = _classes(chunk[self._label])
        if kinds is None:
            self._too_many = True
            return
        found, counts = np.unique(kinds, return_counts=True)
        self._kinds.setdefault(split, Counter()).update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
        self._too_many = len(self._kinds[split]) > _MOST_CLASSES

    def check_names(self, path: Path) -> None:
        """Say so where a class was asked for that is not there."""
        there = {kind for some in self._kinds.values() for kind in some}
        missing = sorted(self._only - there)
        if missing and self._label is None:
            raise UsageError(f"{path} has no column of classes", fix="name it with --label")
        if missing:
            known = ", ".join(sorted(there)[:20]) or "none"
            raise UsageError(f"{path} has no class {missing[0]} in its column {self._label}", fix=f"one of: {known}")

    @property
    def splits(self) -> dict[str, int]:
        """Rows of each split."""
        return {split: self._rows[split] for split in sorted(self._rows, key=order_of)}

    def figures(self) -> Iterator[Figure]:
        """Classes first, then all columns; rows of the same lengths are told once."""
        if self._is_classified():
            yield self._bars()
        lengths: dict[str, tuple[Histogram, list[str]]] = {}
        for name, column in self.columns.items():
            if name == self._label and self._is_classified():
                continue
            for figure in column.figures():
                if isinstance(figure, Histogram) and figure.key.startswith("entries:"):
                    lengths.setdefault(repr((figure.edges, figure.counts)), (figure, []))[1].append(name)
                else:
                    yield figure
        for figure, names in lengths.values():
            also = ", ".join(names[1:])
            yield replace(figure, title=f"entries of {names[0]}", note=f"also: {also}" if also else "")

    def _is_classified(self) -> bool:
        """Whether the label is a class: words or whole numbers of which there are few."""
        rows = sum(sum(some.values()) for some in self._kinds.values())
        different = {kind for some in self._kinds.values() for kind in some}
        return bool(different) and not self._too_many and len(different) <= max(2, rows // 5)

    def _bars(self) -> Bars:
        total: Counter[str] = sum(self._kinds.values(), Counter())
        splits = sorted(self._kinds, key=order_of)
        wanted = [kind for kind, _ in total.most_common() if not self._only or kind in self._only]
        counts = {kind or "(empty)": {split: self._kinds[split][kind] for split in splits} for kind in wanted}
        return Bars(key="classes", title=f"classes ({self._label})", unit="rows", counts=counts)


def _shown_of_pass(progress: Progress, number: int, passes: int, done: int, total: int) -> None:
    progress(number * total + done, passes * total)


def _rows(chunk: Chunk) -> int:
    return next(iter(chunk.values())).rows if chunk else 0


def _classes(column: Column) -> npt.NDArray[np.str_] | None:
    """The class of every row as a word; None where the column holds measurements."""
    values = column.values
    if values.ndim != 1 or column.counts is not None:
        return None
    if values.dtype.kind == "f":
        whole = np.nan_to_num(values, nan=0.0, posinf=0.5, neginf=0.5)
        if not (whole == np.round(whole)).all() or np.abs(whole).max(initial=0) > 1 << 53:
            return None
        words = whole.astype(np.int64).astype(str)
        words[np.isnan(values)] = "nan"
        return words
    return values.astype(str)
