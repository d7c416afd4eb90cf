"""Statistics of tables, arrays, trees and torch data sets: all chunks go by once, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from holdfast.data.column_summary import ColumnSummary
from holdfast.data.columns import Chunk, Column, TableSet, by_split, label_column, taken
from holdfast.data.listing import order_of
from holdfast.data.scan import Progress
from holdfast.data.stats.figures import Bars, Distribution, Figure, Histogram, Statistics, bars
from holdfast.errors import UsageError

_MOST_WORDS = 4096  # different ones of a column that are counted
_MOST_CLASSES = 1000
_LISTED = 50


def table_statistics(data: TableSet, *, label: str | None, only: frozenset[str], progress: Progress | None) -> Statistics:
    """Count all rows; a part that breaks off counts as far as it could be read."""
    counts = _TableCounts(label, only, data.class_names)
    for part, _, chunk in data.read(progress):
        for split, some in by_split(part.split, chunk):
            counts.add(split, some)
    if label is not None and counts.columns and label not in counts.columns:
        raise UsageError(f"{data.root} has no column {label}", fix=f"one of: {', '.join(list(counts.columns)[:20])}")
    counts.check_names(data.root)
    report = Statistics(format=data.format, unit=data.unit, splits=counts.splits, notes=data.notes, classes=sorted(only))
    report.add_faults(data.faults)
    report.figures = list(counts.figures())
    return report


class _TableCounts:
    """Takes chunk after chunk. With `only`, rows of other classes are left out."""

    def __init__(self, label: str | None, only: frozenset[str], class_names: dict[str, list[str]]) -> None:
        self._chosen, self._only, self._class_names = label, only, class_names
        self._label: str | None = None
        self._rows: Counter[str] = Counter()
        self._kinds: dict[str, Counter[str]] = {}
        self._too_many = False
        self.columns: dict[str, _ColumnCounts] = {}

    def add(self, split: str, chunk: Chunk) -> None:
        """Some rows of a split."""
        self._label = self._label or label_column(list(chunk), self._chosen)
        kinds = _classes(chunk[self._label], self._class_names.get(self._label)) if self._label in chunk else None
        if self._label in chunk and not self._too_many:
            self._kinds.setdefault(split, Counter()).update((kinds if kinds is not None else np.empty(0, str)).tolist())
            self._too_many = kinds is None or len(self._kinds[split]) > _MOST_CLASSES
        if self._only and kinds is not None:
            chunk = taken(chunk, np.isin(kinds, list(self._only)))
        self._rows[split] += next(iter(chunk.values())).rows if chunk else 0
        for name, column in chunk.items():
            if name not in self.columns:
                self.columns[name] = _ColumnCounts(name, column)
            self.columns[name].add(split, column)

    def check_names(self, path: Path) -> None:
        """Say so where a class was asked for that is not there."""
        there = {kind for some in self._kinds.values() for kind in some}
        missing = sorted(self._only - there)
        if missing and self._label is None:
            raise UsageError(f"{path} has no column of classes", fix="name it with --label")
        if missing:
            existing = ", ".join(sorted(there)[:20]) or "none"
            raise UsageError(f"{path} has no class {missing[0]} in its column {self._label}", fix=f"one of: {existing}")

    @property
    def splits(self) -> dict[str, int]:
        """Rows of each split."""
        return {split: self._rows[split] for split in sorted(self._rows, key=order_of)}

    def figures(self) -> Iterator[Figure]:
        """Classes first, then all columns; rows of the same lengths are told once."""
        total: Counter[str] = sum(self._kinds.values(), Counter())
        classified = bool(total) and not self._too_many and len(total) <= max(2, total.total() // 5)
        if classified:
            wanted = [kind for kind, _ in total.most_common() if not self._only or kind in self._only]
            yield bars("classes", f"classes ({self._label})", "rows", self._kinds, kinds=wanted, name=_shown)
        lengths: dict[str, tuple[Histogram, list[str]]] = {}
        for name, column in self.columns.items():
            if name == self._label and classified:
                continue
            yield column.figure()
            if column.entries.number:
                figure = column.entries.histogram(f"entries:{name}", f"entries of {name}", "a row")
                lengths.setdefault(repr((figure.edges, figure.counts)), (figure, []))[1].append(name)
        for figure, names in lengths.values():
            yield replace(figure, note=f"also: {', '.join(names[1:])}" if names[1:] else "")


class _ColumnCounts:
    """Takes the chunks of one column: its numbers, or its words; and how many entries a row has, where that differs."""

    def __init__(self, name: str, first: Column) -> None:
        self.name = name
        self.entries = Distribution()
        self._summary = ColumnSummary(first.values.dtype)
        self._words: dict[str, Counter[str]] | None = None if self._summary.is_number else {}
        self._uncounted = 0

    def add(self, split: str, column: Column) -> None:
        """Some rows."""
        if self._words is not None:
            counts = self._words.setdefault(split, Counter())
            for word, count in sorted(Counter(map(str, column.values.ravel().tolist())).items()):
                if word in counts or len(counts) < _MOST_WORDS:
                    counts[word] += count
                else:
                    self._uncounted += count
        elif column.values.dtype.kind in "iuf":
            self._summary.add(column, split=split)
        if column.counts is not None:
            self.entries.add(split, *np.unique(column.counts, return_counts=True))

    def figure(self) -> Bars | Histogram:
        """The words, the most frequent first, or the histogram."""
        if self._words is None:
            summary = self._summary
            return summary.values.histogram(f"column:{self.name}", self.name, nan=summary.nan, inf=summary.inf)
        different = len({word for some in self._words.values() for word in some})
        note = f"{different:,}{' or more' if self._uncounted else ''} different"
        made = bars(f"column:{self.name}", self.name, "values", self._words, most=_LISTED, name=_shown, note=note)
        return replace(made, of_others=made.of_others + self._uncounted)


def _shown(word: str) -> str:
    return word or "(empty)"


def _classes(column: Column, names: list[str] | None) -> npt.NDArray[np.str_] | None:
    """The class of every row as a word, by its name where numbers have `names`; None where the column holds measurements."""
    values = column.values
    if values.ndim != 1 or column.counts is not None:
        return None
    if names and values.dtype.kind in "iu":
        different, places = np.unique(values, return_inverse=True)
        return np.array([names[kind] if 0 <= kind < len(names) else str(kind) for kind in different.tolist()])[places]
    if values.dtype.kind == "f":
        whole = np.nan_to_num(values, nan=0.0, posinf=0.5, neginf=0.5)
        if not (whole == np.round(whole)).all() or np.abs(whole).max(initial=0) > 1 << 53:
            return None
        texts = whole.astype(np.int64).astype(str)
        texts[np.isnan(values)] = "nan"
        return texts
    return values.astype(str)
