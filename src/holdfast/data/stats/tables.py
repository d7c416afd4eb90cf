"""Statistics of tables, arrays, trees and torch data sets: read in chunks, never as a whole.

Files are read twice: for the range of every column, then for the bins. A data set of code is gone through once, since it may be
slow, change, or run dry: its bins are chosen from its first chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from holdfast.data.columns import Chunk, Column, TableSet, Unreadable, by_split, label_column, taken
from holdfast.data.formats.splits import order_of
from holdfast.data.problem import Fault
from holdfast.data.scan import Progress
from holdfast.data.stats.column import ColumnCounts
from holdfast.data.stats.figures import Bars, Figure, Histogram
from holdfast.data.stats.report import Statistics
from holdfast.errors import UsageError

_MOST_CLASSES = 1000
_UNREADABLE = "table-unreadable"


def table_statistics(
    path: str, data: TableSet, *, label: str | None, only: frozenset[str], progress: Progress | None
) -> Statistics:
    """Count all rows."""
    if not data.parts and not data.faults:
        raise UsageError(f"{path} holds nothing to read", fix="name a file, or another --format")
    counts = TableCounts(label, only, once=data.format == "dataset")
    counts.read(data, progress)
    if label is not None and counts.columns and label not in counts.columns:
        raise UsageError(f"{path} has no column {label}", fix=f"one of: {', '.join(list(counts.columns)[:20])}")
    counts.check_names(path)
    unit = "samples" if data.format == "dataset" else "rows"
    report = Statistics(path=path, format=data.format, unit=unit, splits=counts.splits, notes=data.notes, classes=sorted(only))
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
        rows, passes = sum(part.rows or 0 for part in data.parts), 1 if self._once else 2
        done = 0
        for again in range(passes):
            for chunk_split, chunk in _chunks(data, tell=not again):
                for split, some in by_split(chunk_split, chunk):
                    self._take(split, some, again=bool(again))
                done += _rows(chunk)
                if progress:
                    progress(done, max(rows * passes, done))

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

    def check_names(self, path: str) -> None:
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


def _chunks(data: TableSet, *, tell: bool) -> Iterator[tuple[str, Chunk]]:
    for part in data.parts:
        try:
            yield from ((part.split, chunk) for chunk in part.chunks() if chunk)
        except Unreadable as error:
            if tell:
                data.faults.append(Fault(_UNREADABLE, part.file, 0, str(error)))


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
