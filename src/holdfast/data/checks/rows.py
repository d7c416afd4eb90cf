"""Rows that are there twice or in two splits, rows that belong together, and rows that are sorted by their label."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.problem import Problem, problem

MOST_NAMED = 10_000  # rows of a problem that are named
MOST_SHOWN = 1000  # of which `holdfast visualize` chooses
_GROUPS_SHOWN = 12
Place = tuple[str, int]  # a row: its file, and its number there
_FEWEST_GROUPS = 20
_REPEATED = 0.9  # distinct keys over rows, below which rows belong together


class RowPlaces:
    """Which row of which file each row of a split is. Rows that follow each other in a file take no room."""

    def __init__(self) -> None:
        self._rows = 0
        self._starts: list[int] = []  # of each run of rows, in the split
        self._runs: list[tuple[str, int, npt.NDArray[Any] | None]] = []  # file, number of the first, how far each is from it

    def add(self, file: str, rows: npt.NDArray[np.int64]) -> None:
        """The next rows, by their numbers in a file, which grow."""
        if not len(rows):
            return
        first, span = int(rows[0]), int(rows[-1] - rows[0]) + 1
        apart = None if span == len(rows) else (rows - first).astype(np.min_scalar_type(span))
        last_file, last_first, last_apart = self._runs[-1] if self._runs else ("", 0, None)
        follows = last_file == file and last_apart is None and first == last_first + self._rows - self._starts[-1]
        if apart is not None or not follows:
            self._starts.append(self._rows)
            self._runs.append((file, first, apart))
        self._rows += len(rows)

    def of(self, row: int) -> tuple[str, int]:
        """The file of a row of the split, and its number there."""
        run = bisect_right(self._starts, row) - 1
        file, first, apart = self._runs[run]
        within = row - self._starts[run]
        return file, first + (within if apart is None else int(apart[within]))


def by_file(places: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Rows that are named one by one, put together by their files."""
    rows: dict[str, list[int]] = {}
    for file, number in places:
        rows.setdefault(file, []).append(number)
    return rows


class SplitRows(NamedTuple):
    """The rows of one split: a number for each that tells whether two are equal, where they lie, and all files of the split."""

    hashes: npt.NDArray[np.uint64]
    places: RowPlaces
    files: list[str]

    def beside(self, rows: npt.NDArray[np.intp], other: SplitRows) -> list[list[Place]]:
        """Each of the first rows with the first of the other split that has the same number, to be shown side by side."""
        hashes, first = np.unique(other.hashes, return_index=True)
        some = rows[:MOST_SHOWN]
        partners = first[np.searchsorted(hashes, self.hashes[some])]
        return [[self.places.of(int(row)), other.places.of(int(partner))] for row, partner in zip(some, partners, strict=True)]


def duplicate_problems(splits: Mapping[str, SplitRows]) -> Iterator[Problem]:
    """Compare the numbers of all rows of all splits."""
    for split in splits.values():
        again = _repeats(split.hashes)
        if len(again):
            file, row = split.places.of(int(again[0]))
            among = f" in {len(split.files):,} files" if len(split.files) > 1 else ""
            many = f"{len(again):,} of {len(split.hashes):,} rows{among}"
            yield _of_rows("duplicate-row", split, again, split, f"{file}: {many} repeat an earlier one, first row {row:,}")
    for earlier, other in itertools.combinations(splits.values(), 2):
        both = np.flatnonzero(np.isin(other.hashes, earlier.hashes))
        if len(both):
            file, row = other.places.of(int(both[0]))
            first, at = other.beside(both[:1], earlier)[0][1]
            yield _of_rows("split-leak rows", other, both, earlier, f"row {row:,} of {file} is row {at:,} of {first} too")


def _of_rows(kind: str, split: SplitRows, rows: npt.NDArray[np.intp], equals: SplitRows, example: str) -> Problem:
    """`rows` are counted in the split; `in_files` are the same rows as they are counted in their files."""
    some = rows[:MOST_NAMED].tolist()
    named = by_file(map(split.places.of, some))
    shown = split.beside(rows, equals)
    return problem(kind, count=len(rows), files=split.files, example=example, rows=some, in_files=named, shown=shown)


def _repeats(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    first = np.zeros(len(hashes), bool)
    first[np.unique(hashes, return_index=True)[1]] = True
    return np.flatnonzero(~first)


def group_problems(splits: Mapping[str, SplitRows], names: Sequence[str]) -> Iterator[Problem]:
    """Rows with the same key, such as run and event: in two splits they are a leak; in one, the next random split makes one.

    The number of a row is that of its key; 0 stands for a row whose key is missing.
    """
    keys = {name: split.hashes[split.hashes != 0] for name, split in splits.items()}
    if all(len(np.unique(hashes)) == len(hashes) for hashes in keys.values()):
        return  # it numbers the rows, and starts again in each split
    columns = ", ".join(names)
    for earlier, other in itertools.combinations(splits, 2):
        shared = np.intersect1d(keys[earlier], keys[other])
        if len(shared):
            files = [*splits[earlier].files, *splits[other].files]
            first = [np.flatnonzero(splits[other].hashes == key)[0] for key in shared[:_GROUPS_SHOWN]]
            yield problem(
                "split-leak groups", count=len(shared), files=files,
                example=f"{splits[earlier].files[0]} and {splits[other].files[0]}",
                words=f"{len(shared):,} distinct ({columns}) have rows in two splits", keys=list(names),
                shown=splits[other].beside(np.array(first), splits[earlier]),
            )  # fmt: skip
    if len(splits) == 1:
        ((name, split),) = splits.items()
        rows, distinct = len(keys[name]), len(np.unique(keys[name]))
        if distinct >= max(_FEWEST_GROUPS, rows / 100) and distinct < _REPEATED * rows:
            example = f"{split.files[0]}: {rows:,} rows, but only {distinct:,} distinct ({columns})"
            again = _repeats(split.hashes)
            again = again[split.hashes[again] != 0]
            once = np.sort(again[np.unique(split.hashes[again], return_index=True)[1]])  # each key once, beside an earlier row
            shown = split.beside(once[:: max(1, len(once) // _GROUPS_SHOWN)], split)
            yield problem(
                "split-leak groups", count=rows - distinct, files=split.files, example=example, keys=list(names), shown=shown
            )


def rows_are_distinctive(distinct: Sequence[int | None], rows: int) -> bool:
    """Whether equal rows are no chance: the values that the columns have could tell far more rows apart than there are."""
    bits = sum(math.log2(max(count, 1)) if count is not None else 32.0 for count in distinct)
    return bits > 2 * math.log2(max(rows, 2)) + 8


def order_problems(changes: int, classes: int, rows: int, file: str, label: str) -> Iterator[Problem]:
    """`changes`: how often the label differs from the row before. Sorted rows change once less than there are classes."""
    if classes >= 2 and rows >= 10 * classes and changes == classes - 1:
        yield problem(
            "unshuffled-data", count=rows, files=[file], example=f"{file}: {label} changes {changes} times in {rows:,} rows"
        )
