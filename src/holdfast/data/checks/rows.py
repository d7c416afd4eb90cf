"""Rows that are there twice or in two splits, rows that belong together, and rows that are sorted by their label."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from holdfast.data.problem import Kind, Problem, problem

LEAK = Kind(
    "split-leak", "critical", "rows that are in two splits: {count}",
    "remove them from one of the two: the metric counts what was learnt by heart",
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

_FEWEST_GROUPS = 20
_REPEATED = 0.9  # distinct keys over rows, below which rows belong together


def duplicate_problems(rows: Mapping[str, npt.NDArray[np.uint64]], files: Mapping[str, list[str]]) -> Iterator[Problem]:
    """Compare the numbers of all rows of all splits."""
    splits = list(rows)
    for split in splits:
        places = _repeats(rows[split])
        if places:
            example = (
                f"{files[split][0]}: {len(places):,} of {len(rows[split]):,} rows repeat an earlier one, first row {places[0]:,}"
            )
            yield problem(TWICE, count=len(places), files=files[split], example=example, rows=places[:10_000])
    for place, one in enumerate(splits):
        for other in splits[place + 1 :]:
            both = np.flatnonzero(np.isin(rows[other], rows[one]))
            if len(both):
                example = f"row {int(both[0]):,} of {files[other][0]} is in {files[one][0]} too"
                yield problem(LEAK, count=len(both), files=files[other], example=example, rows=both[:10_000].tolist())


def _repeats(numbers: npt.NDArray[np.uint64]) -> list[int]:
    first = np.zeros(len(numbers), bool)
    first[np.unique(numbers, return_index=True)[1]] = True
    return [int(place) for place in np.flatnonzero(~first)]


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
