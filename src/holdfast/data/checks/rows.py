"""Rows that are there twice or in two splits, rows that belong together, and rows that are sorted by their label."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.problem import Kind, Problem, problem

LEAK = Kind(
    "split-leak", "critical", "rows that are in two splits: {count}",
    "remove them from one of the two: memorised samples inflate the metric",
)  # fmt: skip
TWICE = Kind(
    "duplicate-row", "warning", "rows that are there more than once: {count}", "keep one of each, or weight them on purpose"
)
GROUPED = Kind(
    "split-leak", "warning", "rows belong together: a random split of them leaks",
    "split by these columns, not by row: keep all rows of one of them in one split (GroupShuffleSplit)",
)  # fmt: skip
SORTED = Kind(
    "unshuffled-data",
    "warning",
    "the rows are sorted by their label",
    "shuffle when loading (shuffle=True), also before a split by position",
)
KINDS = (LEAK, TWICE, GROUPED, SORTED)

MOST_NAMED = 10_000  # rows of a problem that are named
_FEWEST_GROUPS = 20
_REPEATED = 0.9  # distinct keys over rows, below which rows belong together


class RowPlaces:
    """Which row of which file each row of a split is. Rows that follow each other in a file take no room."""

    def __init__(self) -> None:
        self._rows = 0
        self._starts: list[int] = []  # of each run of rows, in the split
        self._runs: list[tuple[str, int, npt.NDArray[Any] | None]] = []  # file, number of the first, how far each is from it

    def add(self, file: str, numbers: npt.NDArray[np.int64]) -> None:
        """The next rows, by their numbers in a file, which grow."""
        if not len(numbers):
            return
        first, span = int(numbers[0]), int(numbers[-1] - numbers[0]) + 1
        apart = None if span == len(numbers) else (numbers - first).astype(np.min_scalar_type(span))
        if apart is not None or not self._goes_on(file, first):
            self._starts.append(self._rows)
            self._runs.append((file, first, apart))
        self._rows += len(numbers)

    def _goes_on(self, file: str, number: int) -> bool:
        """Whether a row directly follows the last run."""
        if not self._runs:
            return False
        last, first, apart = self._runs[-1]
        return apart is None and last == file and number == first + self._rows - self._starts[-1]

    def of(self, row: int) -> tuple[str, int]:
        """The file of a row of the split, and its number there."""
        run = bisect_right(self._starts, row) - 1
        file, first, apart = self._runs[run]
        within = row - self._starts[run]
        return file, first + (within if apart is None else int(apart[within]))


def by_file(places: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Rows that are named one by one, put together by their files."""
    found: dict[str, list[int]] = {}
    for file, number in places:
        found.setdefault(file, []).append(number)
    return found


class SplitRows(NamedTuple):
    """The rows of one split: a number for each that tells whether two are equal, where they lie, and all files of the split."""

    numbers: npt.NDArray[np.uint64]
    places: RowPlaces
    files: list[str]


def duplicate_problems(splits: Mapping[str, SplitRows]) -> Iterator[Problem]:
    """Compare the numbers of all rows of all splits."""
    for split in splits.values():
        again = _repeats(split.numbers)
        if len(again):
            file, row = split.places.of(int(again[0]))
            among = f" in {len(split.files):,} files" if len(split.files) > 1 else ""
            many = f"{len(again):,} of {len(split.numbers):,} rows{among}"
            yield _of_rows(TWICE, split, again, f"{file}: {many} repeat an earlier one, first row {row:,}")
    for one, other in itertools.combinations(splits.values(), 2):
        both = np.flatnonzero(np.isin(other.numbers, one.numbers))
        if len(both):
            file, row = other.places.of(int(both[0]))
            first, at = one.places.of(int(np.flatnonzero(one.numbers == other.numbers[both[0]])[0]))
            yield _of_rows(LEAK, other, both, f"row {row:,} of {file} is row {at:,} of {first} too")


def _of_rows(kind: Kind, split: SplitRows, rows: npt.NDArray[np.intp], example: str) -> Problem:
    """`rows` are counted in the split; `in_files` are the same rows as they are counted in their files."""
    some = rows[:MOST_NAMED].tolist()
    named = by_file(map(split.places.of, some))
    return problem(kind, count=len(rows), files=split.files, example=example, rows=some, in_files=named)


def _repeats(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    first = np.zeros(len(numbers), bool)
    first[np.unique(numbers, return_index=True)[1]] = True
    return np.flatnonzero(~first)


def group_problems(
    keys: Mapping[str, npt.NDArray[np.uint64]], names: Sequence[str], files: Mapping[str, list[str]]
) -> Iterator[Problem]:
    """Rows with the same key, such as run and event: in two splits they are a leak; in one, the next random split makes one."""
    if all(len(np.unique(one)) == len(one) for one in keys.values()):
        return  # it numbers the rows, and begins anew in each split
    splits = list(keys)
    said = ", ".join(names)
    for place, one in enumerate(splits):
        for other in splits[place + 1 :]:
            shared = np.intersect1d(keys[one], keys[other])
            if len(shared):
                words = f"{len(shared):,} distinct ({said}) have rows in two splits"
                example = f"{files[one][0]} and {files[other][0]}"
                yield problem(
                    GROUPED, count=len(shared), files=[*files[one], *files[other]], example=example, words=words, keys=list(names)
                )
    if len(splits) == 1:
        rows, distinct = len(keys[splits[0]]), len(np.unique(keys[splits[0]]))
        if distinct >= max(_FEWEST_GROUPS, rows / 100) and distinct < _REPEATED * rows:
            example = f"{files[splits[0]][0]}: {rows:,} rows, but only {distinct:,} distinct ({said})"
            yield problem(GROUPED, count=rows - distinct, files=files[splits[0]], example=example, keys=list(names))


def rows_are_distinctive(distinct: Sequence[int | None], rows: int) -> bool:
    """Whether equal rows are no chance: the values that the columns have could tell far more rows apart than there are."""
    bits = sum(math.log2(max(count, 1)) if count is not None else 32.0 for count in distinct)
    return bits > 2 * math.log2(max(rows, 2)) + 8


def order_problems(changes: int, classes: int, rows: int, file: str, label: str) -> Iterator[Problem]:
    """`changes`: how often the label differs from the row before. Sorted rows change once less than there are classes."""
    if classes >= 2 and rows >= 10 * classes and changes == classes - 1:
        yield problem(SORTED, count=rows, files=[file], example=f"{file}: {label} changes {changes} times in {rows:,} rows")
