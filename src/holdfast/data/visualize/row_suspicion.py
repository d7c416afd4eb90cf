"""Which rows a report is suspicious of. It names columns and row numbers; the rows themselves are looked for here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.data.columns import Chunk, is_key, taken
from holdfast.data.problem import Problem
from holdfast.data.row_hash import row_numbers
from holdfast.data.visualize.row_pieces import Piece, RowId

_REPEATS = frozenset({"duplicate-row", "split-leak"})
_AT_THE_EDGES = frozenset({"column-sentinel", "column-extreme", "dtype-overflow"})
_MOST_GROUPS = 12


@dataclass(slots=True)
class Suspicion:
    """One problem, and the rows that show it.

    `equal_to`: the number that a row has in common with another one, which is shown beside it: that of all its values, or of
    the columns `keys` where rows belong together.
    """

    problem: Problem
    rows: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    keys: tuple[str, ...] = ()
    found: list[RowId] = field(default_factory=list)
    equal_to: dict[RowId, int] = field(default_factory=dict)
    edges: dict[tuple[str, bool], tuple[float, RowId]] = field(default_factory=dict)

    @property
    def is_of_pairs(self) -> bool:
        """Whether rows are shown beside another one."""
        return self.problem.code in _REPEATS

    @property
    def columns(self) -> list[str]:
        """The columns that are wrong."""
        return list(self.problem.numbers.get("columns", ()))

    def fits_split(self, one: str, other: str, splits: int) -> bool:
        """Whether a row of one split can be what a row of the other is equal to."""
        if self.problem.code == "duplicate-row":
            return one == other
        return one != other or (bool(self.keys) and splits == 1)

    def is_about(self, file: str) -> bool:
        """Whether the problem is in this file. Of several files it names three in one word."""
        return any(file == one or file in one.split(", ") for one in self.problem.files)

    def look(self, piece: Piece, keys: npt.NDArray[np.float64]) -> None:
        """Find the rows among some; `keys` are their lots."""
        if self.keys:
            self._look_for_groups(piece, keys)
        elif self.problem.code in _AT_THE_EDGES:
            self._look_at_edges(piece)
        elif len(self.rows):
            self._look_for_rows(piece)

    def _look_for_rows(self, piece: Piece) -> None:
        start, stop = np.searchsorted(self.rows, (piece.first, piece.first + piece.rows))
        positions = self.rows[start:stop] - piece.first
        if not len(positions):
            return
        if self.is_of_pairs:
            numbers = numbers_of(_some(piece.chunk, positions), ())
            self.equal_to.update({piece.id_of(one): int(number) for one, number in zip(positions, numbers, strict=True)})
        else:
            positions = positions[_odd_rows(_some(piece.chunk, positions), self.columns)]
        self.found += [piece.id_of(one) for one in positions]

    def _look_at_edges(self, piece: Piece) -> None:
        """A sentinel, an extreme and an overflow all are the lowest or the highest value of their column."""
        for name in self.columns:
            column = piece.chunk.get(name)
            if column is None or column.counts is not None or column.values.ndim != 1 or column.values.dtype.kind not in "iuf":
                continue
            values = column.values.astype(np.float64)
            for highest in (False, True):
                position = int(
                    np.argmax(np.nan_to_num(values, nan=-np.inf)) if highest else np.argmin(np.nan_to_num(values, nan=np.inf))
                )
                value, before = float(values[position]), self.edges.get((name, highest))
                if before is None or (value > before[0] if highest else value < before[0]):
                    self.edges[name, highest] = value, piece.id_of(position)

    def _look_for_groups(self, piece: Piece, keys: npt.NDArray[np.float64]) -> None:
        if not all(name in piece.chunk for name in self.keys) or len(self.found) >= _MOST_GROUPS:
            return
        positions = np.sort(np.argsort(keys, kind="stable")[: _MOST_GROUPS - len(self.found)])
        numbers = numbers_of(_some(piece.chunk, positions), self.keys)
        for one, number in zip(positions, numbers, strict=True):
            self.found.append(piece.id_of(one))
            self.equal_to[self.found[-1]] = int(number)

    def settle(self, medians: dict[str, float]) -> None:
        """Of the lowest and the highest value of a column, the one that lies farther from its middle is what is wrong."""
        for name in dict.fromkeys(name for name, _ in self.edges):
            both = [self.edges[name, highest] for highest in (False, True) if (name, highest) in self.edges]
            middle = medians.get(name, 0.0)
            farthest = max(both, key=lambda one: abs(one[0] - middle) if np.isfinite(one[0]) else np.inf)
            self.found.append(farthest[1])


def suspicions(problems: list[Problem]) -> list[Suspicion]:
    """One for each problem that can be shown by rows."""
    found = []
    for problem in problems:
        rows = np.array(sorted(problem.numbers.get("rows", ())), np.int64)
        keys = tuple(problem.numbers.get("keys", ()))
        found.append(Suspicion(problem, rows, keys))
    return found


def numbers_of(chunk: Chunk, keys: tuple[str, ...]) -> npt.NDArray[Any]:
    """The numbers by which validation tells rows apart: of these columns, or of all that are measured."""
    names = keys or [name for name in sorted(chunk) if not is_key(name)] or sorted(chunk)
    return row_numbers(chunk, names)


def _some(chunk: Chunk, positions: npt.NDArray[np.int64]) -> Chunk:
    rows = np.zeros(next(iter(chunk.values())).rows, bool)
    rows[positions] = True
    return taken(chunk, rows)


def _odd_rows(chunk: Chunk, columns: list[str]) -> npt.NDArray[np.bool_]:
    """Which rows hold what is no number in one of these columns."""
    odd: npt.NDArray[np.bool_] = np.zeros(next(iter(chunk.values())).rows, bool)
    for column in (chunk[name] for name in columns if name in chunk and chunk[name].values.dtype.kind == "f"):
        wrong = ~np.isfinite(column.values)
        if column.counts is None:
            odd |= wrong.reshape(len(wrong), -1).any(axis=1)
        else:
            ends = np.cumsum(column.counts)
            before = np.concatenate([np.zeros(1, np.int64), np.cumsum(wrong)])
            odd |= before[ends] > before[ends - column.counts]
    return odd
