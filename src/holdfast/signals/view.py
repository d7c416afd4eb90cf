"""What detectors look at: the recent steps of a run as columns, its beginning, its extremes, and its evaluations.

Pure numpy: the same view is made from live tables, from a finished run, or in a test from two arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.signals.schema import MISSING_BITS, MISSING_INT

Column = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]


class Evaluation(NamedTuple):
    """One metric of one evaluation."""

    step: int
    split: str
    name: str
    value: float


class SignalView:
    """A run as of its newest row.

    `recent` holds the last rows of `steps` (oldest first), `beginning` the first rows of the run, and `highest` the largest
    value that each column had in rows that are no longer in `recent`. A column may be left out: it reads as empty.
    """

    def __init__(
        self,
        recent: Mapping[str, Column],
        *,
        beginning: Mapping[str, Column] | None = None,
        highest: Mapping[str, float] | None = None,
        evaluations: Sequence[Evaluation] = (),
        plays: bool = False,
    ) -> None:
        """`plays`: it learns from what it does in an environment, and its loss is no measure of how well."""
        self._recent, self.plays = recent, plays
        self._beginning = recent if beginning is None else beginning
        self._highest = highest or {}
        self._evaluations = evaluations

    @property
    def step(self) -> int:
        """The newest step; -1 before the first."""
        steps = self._recent["step"]
        return int(steps[-1]) if len(steps) else -1

    def __len__(self) -> int:
        return len(self._recent["step"])

    def column(self, name: str, count: int | None = None) -> Column:
        """A column as it is over the last `count` rows, missing values and all; empty where nobody recorded it."""
        values = self._recent.get(name)
        if values is None:
            return np.empty(0)
        return values if count is None else values[max(0, len(values) - count) :]

    def last(self, name: str, count: int) -> tuple[Steps, Floats]:
        """The last `count` values that were measured, at steps whose update was made. NaN and Inf that were measured stay."""
        rows = 2 * count + 8
        while True:
            steps, values = self._made(self._recent, name, rows)
            if len(values) >= count or rows >= len(self):
                return steps[max(0, len(steps) - count) :], values[max(0, len(values) - count) :]
            rows *= 4

    def first(self, name: str, count: int) -> tuple[Steps, Floats]:
        """The first `count` values of the run that were measured, at steps whose update was made."""
        steps, values = self._made(self._beginning, name, None)
        return steps[:count], values[:count]

    def highest(self, name: str, *, before: int) -> float:
        """The largest finite value that the column ever had at a step before `before`; -inf if it had none."""
        values = self.column(name)
        valid = values[measured(values) & (self._recent["step"] < before)] if len(values) else values
        valid = valid[np.isfinite(valid)]
        return max(self._highest.get(name, -np.inf), float(valid.max()) if len(valid) else -np.inf)

    def metrics(self) -> list[tuple[str, str]]:
        """Each (split, name) that was evaluated, in the order in which they first came."""
        return list(dict.fromkeys((evaluation.split, evaluation.name) for evaluation in self._evaluations))

    def evaluated(self, split: str, name: str) -> tuple[Steps, Floats]:
        """The values of one metric, oldest first."""
        chosen = [evaluation for evaluation in self._evaluations if evaluation.split == split and evaluation.name == name]
        return np.array([point.step for point in chosen], np.int64), np.array([point.value for point in chosen], np.float64)

    def until(self, step: int) -> SignalView:
        """The same run as it was when `step` was its newest step."""
        end = int(np.searchsorted(self._recent["step"], step, side="right"))
        return SignalView(
            {name: values[:end] for name, values in self._recent.items()},
            beginning=self._beginning,
            highest=self._highest,
            evaluations=[evaluation for evaluation in self._evaluations if evaluation.step <= step],
            plays=self.plays,
        )

    def _made(self, columns: Mapping[str, Column], name: str, rows: int | None) -> tuple[Steps, Floats]:
        values, steps, skipped = columns.get(name), columns["step"], columns.get("skipped")
        if values is None:
            return np.empty(0, np.int64), np.empty(0)
        start = 0 if rows is None else max(0, len(values) - rows)
        wanted = measured(values[start:])
        if skipped is not None:
            wanted &= skipped[start:] != 1
        return steps[start:][wanted], values[start:][wanted].astype(np.float64, copy=False)


def measured(values: Column) -> npt.NDArray[np.bool_]:
    """Where a value was measured. A NaN that was measured counts as such."""
    is_float = values.dtype.kind == "f"
    mask: npt.NDArray[np.bool_] = (values.view("<i8") if is_float else values) != (MISSING_BITS if is_float else MISSING_INT)
    return mask
