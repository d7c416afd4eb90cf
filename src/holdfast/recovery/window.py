"""The recent rows of a run in memory: bounded, cheap to append to, and readable as of its newest row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from holdfast.signals.schema import TABLES
from holdfast.signals.view import Column, Evaluation, SignalView, measured

COLUMNS = (
    *("step", "loss", "lr", "grad_norm", "skipped", "non_finite", "scale", "clip_norm", "step_seconds"),
    *("weight_norm", "update_ratio"),
)
ROWS = 4224  # what the detector that looks back furthest needs, and the rise it looks for
BEGINNING = 64
EVALUATIONS = 512


class Window:
    """The last rows of `steps` (`rows` to twice as many), the first ones, the highest values, and the last evaluations."""

    def __init__(self, rows: int = ROWS, *, plays: bool = False) -> None:
        self._rows, self._end, self.seen, self._plays = rows, 0, 0, plays
        kinds = {column.name: column.kind for column in TABLES["steps"].columns}
        self._columns: dict[str, Column] = {name: np.zeros(2 * rows, kinds[name].dtype) for name in COLUMNS}
        self._beginning: dict[str, Column] = {name: np.zeros(0, kinds[name].dtype) for name in COLUMNS}
        self._highest: dict[str, float] = {}
        self._evaluations: list[Evaluation] = []

    def append(self, rows: Mapping[str, Column]) -> None:
        """Take in some rows, many fewer than the window holds."""
        count = len(rows["step"])
        if self._end + count > 2 * self._rows:
            self._make_room()
        for name, values in self._columns.items():
            values[self._end : self._end + count] = rows[name]
        self._end += count
        self.seen += count
        if len(self._beginning["step"]) < BEGINNING:
            self._beginning = {name: np.append(old, rows[name])[:BEGINNING] for name, old in self._beginning.items()}

    def evaluate(self, evaluation: Evaluation) -> None:
        """Take in an evaluation."""
        self._evaluations.append(evaluation)
        del self._evaluations[:-EVALUATIONS]

    @property
    def is_evaluated(self) -> bool:
        """Whether it has taken in an evaluation."""
        return bool(self._evaluations)

    @property
    def first_step(self) -> int:
        """The first step that it took in; -1 before."""
        return int(self._beginning["step"][0]) if len(self._beginning["step"]) else -1

    def view(self) -> SignalView:
        """The run as of the newest row. The view is good until the next row is appended."""
        recent = {name: values[: self._end] for name, values in self._columns.items()}
        evaluations, plays = self._evaluations, self._plays
        return SignalView(recent, beginning=self._beginning, highest=self._highest, evaluations=evaluations, plays=plays)

    def forget(self, since: int, until: int) -> None:
        """Drop the rows and evaluations of steps from `since` to `until`: a roll-back has undone them."""
        steps = self._columns["step"][: self._end]
        kept = (steps < since) | (steps > until)
        for values in self._columns.values():
            values[: int(kept.sum())] = values[: self._end][kept]
        self._end = int(kept.sum())
        self._evaluations = [evaluation for evaluation in self._evaluations if not since < evaluation.step <= until]

    def _make_room(self) -> None:
        out = self._end - self._rows
        for name, values in self._columns.items():
            leaving = values[:out]
            valid = leaving[measured(leaving)]
            valid = valid[np.isfinite(valid)]
            if len(valid):
                self._highest[name] = max(self._highest.get(name, -np.inf), float(valid.max()))
            values[: self._rows] = values[out : self._end].copy()
        self._end = self._rows
