"""Tables, arrays and trees as a whole: all their chunks go by once, and what is left is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.data.checks.classes import class_problems, share_problems, statistics_problems
from holdfast.data.checks.columns import column_problems
from holdfast.data.checks.rows import (
    MOST_NAMED,
    MOST_SHOWN,
    RowPlaces,
    SplitRows,
    by_file,
    duplicate_problems,
    group_problems,
    order_problems,
    rows_are_distinctive,
)
from holdfast.data.column_summary import ColumnSummary, row_numbers, value_counts
from holdfast.data.columns import Chunk, Column, by_split, is_key, key_sets, label_column, numbers_rows
from holdfast.data.listing import order_of
from holdfast.data.problem import Problem, problem

_MOST_ROWS = 50_000_000  # of which duplicates are looked for: eight bytes each
_MOST_CLASSES = 1000
_NUMBER = "\0number in the file"  # a column that is added, so that rows keep their numbers when they are put into splits
_MISSING = frozenset({"", "nan", "n/a", "#n/a", "null"})  # words for no label; "none" and "NA" may be classes
_OWN = 0.8  # values over rows, above which a column is taken for a measurement that does not repeat


class _Split:
    """What is known of one split."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.columns: dict[str, ColumnSummary] = {}
        self.rows = 0
        self.hashes: list[npt.NDArray[np.uint64]] = []
        self.places = RowPlaces()  # of those that have a number
        self.keys: dict[tuple[str, ...], list[npt.NDArray[np.uint64]]] = {}
        self.classes: Counter[Any] = Counter()
        self.unlabelled: list[tuple[int, tuple[str, int]]] = []  # rows in the split, with file and number there
        self.unlabelled_count = 0
        self.changes = 0
        self.last: Any = None


class TableFindings:
    """Takes one chunk after the other."""

    def __init__(self, label: str | None, class_names: dict[str, list[str]] | None = None) -> None:
        self._chosen, self._class_names = label, class_names or {}
        self.label: str | None = None
        self._splits: dict[str, _Split] = {}
        self._row_numbers: set[str] = set()  # columns that only number the rows
        self._too_many = False

    def add(self, split: str, file: str, chunk: Chunk, first: int) -> None:
        """Some rows, of which the first has this number in its file, each to the split that it belongs to."""
        rows = next(iter(chunk.values())).rows
        if first == 0:
            self._row_numbers |= {name for name, column in chunk.items() if numbers_rows(name, column)}
        keys = [name for name in sorted(chunk) if _may_be_key(name, chunk[name]) and name not in self._row_numbers]
        for name, some in by_split(split, {**chunk, _NUMBER: Column(np.arange(first, first + rows))}):
            in_file = some.pop(_NUMBER).values
            self._add(
                self._splits.setdefault(name, _Split()), file, some, in_file, key_sets([key for key in keys if key in some])
            )

    def _add(self, split: _Split, file: str, chunk: Chunk, rows: npt.NDArray[np.int64], keys: list[tuple[str, ...]]) -> None:
        if file not in split.files:
            split.files.append(file)
        self.label = self.label or label_column(list(chunk), self._chosen)
        for key, column in chunk.items():
            split.columns.setdefault(key, ColumnSummary(column.values.dtype)).add(column, file, rows)
        if sum(other.rows for other in self._splits.values()) + len(rows) > _MOST_ROWS:
            self._too_many = True
        elif chunk:
            self._remember(split, chunk, keys)
            split.places.add(file, rows)
        values = _labelled(split, chunk[self.label], file, rows) if self.label in chunk else np.empty(0)
        if values.ndim == 1 and len(values) and len(split.classes) <= _MOST_CLASSES:
            split.classes.update(value_counts(values, _MOST_CLASSES + 1))
            split.changes += int((values[1:] != values[:-1]).sum()) + int(split.last is not None and split.last != values[0])
            split.last = values[-1]
        split.rows += len(rows)

    def _tells(self, name: str) -> bool:
        """Whether a column says something of its rows, and not only which ones they are."""
        return not is_key(name) and name not in self._row_numbers

    def _remember(self, split: _Split, chunk: Chunk, key_columns: list[tuple[str, ...]]) -> None:
        names = [name for name in sorted(chunk) if self._tells(name)]  # rows with other numbers may still be the same
        split.hashes.append(row_numbers(chunk, names or sorted(chunk)))
        for keys in key_columns:
            columns = [chunk[key].values for key in keys]
            missing = np.any(
                [np.isnan(column) if column.dtype.kind == "f" else np.zeros(len(column), bool) for column in columns], axis=0
            )
            split.keys.setdefault(keys, []).append(
                np.where(missing, np.uint64(0), np.maximum(row_numbers(chunk, keys), np.uint64(1)))
            )

    @property
    def splits(self) -> dict[str, int]:
        """Rows of each split."""
        return {name: self._splits[name].rows for name in sorted(self._splits, key=order_of)}

    @property
    def columns(self) -> list[str]:
        """Names of all columns that were met."""
        return list(dict.fromkeys(name for split in self._splits.values() for name in split.columns))

    @property
    def is_classified(self) -> bool:
        """Whether the label is a class: a word, or a whole number of which there are few."""
        some = [split.columns[self.label] for split in self._splits.values() if self.label in split.columns]
        few = all(len(split.classes) <= min(_MOST_CLASSES, max(2, split.rows // 5)) for split in self._splits.values())
        floats = [column.distinct for column in some if column.dtype.kind == "f"]
        whole = all(
            distinct is not None and all(float(value).is_integer() for value in distinct if value == value) for distinct in floats
        )
        return bool(some) and few and whole and all(column.dtype.kind in "OUSiubf" for column in some)

    def named_classes(self) -> dict[str, int]:
        """Rows of each class, by its name."""
        if not self.is_classified:
            return {}
        total: Counter[Any] = sum((split.classes for split in self._splits.values()), Counter())
        names = dict(enumerate(self._class_names.get(str(self.label), ())))
        return {str(names.get(kind, kind)): total[kind] for kind in sorted({**dict.fromkeys(names), **total}, key=str)}

    def notes(self) -> Iterator[str]:
        """What was not looked at."""
        if self._too_many:
            yield f"duplicates were looked for in the first {_MOST_ROWS:,} rows only"

    def problems(self) -> Iterator[Problem]:
        """Everything that is wrong."""
        order = {name: self._splits[name] for name in self.splits}
        for split in order.values():
            yield from column_problems(split.columns, split.files, self.label)
            if split.unlabelled:
                places = [place for _, place in split.unlabelled]
                yield problem(
                    "label-missing rows", count=split.unlabelled_count, files=split.files, in_files=by_file(places),
                    example=f"{places[0][0]}: row {places[0][1]:,} has no {self.label}",
                    rows=[row for row, _ in split.unlabelled], shown=[[place] for place in places[:MOST_SHOWN]],
                )  # fmt: skip
        yield from self._about_splits(order)
        yield from self._about_rows(order)
        if self.is_classified:
            yield from self._about_classes(order)

    def _about_splits(self, order: dict[str, _Split]) -> Iterator[Problem]:
        """Columns that number the rows have other means in each split, and should."""
        spreads = {
            name: {
                key: column.usual_spread
                for key, column in split.columns.items()
                if column.is_number and key != self.label and self._tells(key)
            }
            for name, split in order.items()
        }
        yield from statistics_problems(spreads, {name: split.files for name, split in order.items()})

    def _about_rows(self, order: dict[str, _Split]) -> Iterator[Problem]:
        distinct = [_most_distinct(order, key) for key in self.columns if self._tells(key)]
        rows = {name: _split_rows(split, split.hashes) for name, split in order.items() if split.hashes}
        if rows_are_distinctive(distinct, sum(len(row.hashes) for row in rows.values())):
            yield from duplicate_problems(rows)
        for names in next(iter(order.values())).keys if order else ():
            keys = {name: _split_rows(split, split.keys[names]) for name, split in order.items() if names in split.keys}
            yield from group_problems(keys, names)

    def _about_classes(self, order: dict[str, _Split]) -> Iterator[Problem]:
        total: Counter[Any] = sum((split.classes for split in order.values()), Counter())
        where = f"{next(iter(order.values())).files[0]}, column {self.label}"
        names = dict(enumerate(self._class_names.get(str(self.label), ())))
        outside = sorted(kind for kind in total if names and kind == kind and kind not in names)
        if outside:
            count, files = sum(total[kind] for kind in outside), [file for split in order.values() for file in split.files]
            yield problem("class-out-of-range", count=count, files=files, example=f"{where}: {outside[0]!r}")
        yield from class_problems(total, names, where, classification=True)
        yield from share_problems({name: split.classes for name, split in order.items()}, names)
        for split in order.values():
            yield from order_problems(split.changes, len(split.classes), split.rows, split.files[0], str(self.label))


def _split_rows(split: _Split, hashes: list[npt.NDArray[np.uint64]]) -> SplitRows:
    return SplitRows(np.concatenate(hashes), split.places, split.files)


def _labelled(split: _Split, column: Column, file: str, in_file: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """The labels that are there; rows without one are remembered."""
    values: npt.NDArray[Any] = column.values
    if column.counts is not None or values.ndim != 1 or values.dtype.kind != "O":
        return values
    missing = {word for word in set(values.tolist()) if isinstance(word, str) and word.strip().lower() in _MISSING}
    if not missing:
        return values
    gaps = np.fromiter((word in missing for word in values.tolist()), bool, len(values))
    rows = np.flatnonzero(gaps)
    split.unlabelled_count += len(rows)
    for row in rows[: MOST_NAMED - len(split.unlabelled)].tolist():
        split.unlabelled.append((split.rows + row, (file, int(in_file[row]))))
    there: npt.NDArray[Any] = values[~gaps]
    return there


def _may_be_key(name: str, column: Column) -> bool:
    """Whether rows may be told by a column: words and whole numbers, also where those are floats because of gaps among them."""
    if column.counts is not None or column.values.dtype.kind != "f":
        return column.counts is None
    if not is_key(name) or column.values.ndim != 1:
        return False
    gaps = np.isnan(column.values)
    present = column.values[~gaps]
    return bool(gaps.any() and len(present) and (np.isfinite(present) & (present == np.round(present))).all())


def _most_distinct(splits: dict[str, _Split], name: str) -> int | None:
    """How many different values a column has; None where nearly every row has its own, or they are too many to be counted."""
    most = 0
    for column in (split.columns[name] for split in splits.values() if name in split.columns):
        if column.distinct is None or len(column.distinct) > _OWN * max(column.rows, 1):
            return None
        most = max(most, len(column.distinct))
    return most
