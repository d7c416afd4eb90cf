"""Two looks at rows: the first finds out which ones there are to choose from, the second fetches those that were chosen."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.column_summary import row_numbers
from holdfast.data.columns import Chunk, TableSet, is_key, label_column, taken
from holdfast.data.problem import Problem
from holdfast.data.scan import Progress
from holdfast.data.visualize.row_drawing import Piece, RowId, pieces, row_at

# Which rows a report is suspicious of. It names columns and row numbers; the rows themselves are looked for here.

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


_SAMPLED, _KEPT = 256, 8192  # values of a chunk and of a column from which its usual range is told


class Partner(NamedTuple):
    """The row that another one is equal to, or belongs to; which one that is shows at the second look."""

    of: RowId
    suspicion: int


class Fetched(NamedTuple):
    """A row with its values, and where it was found."""

    row: RowId
    part: int
    place: int
    values: dict[str, Any]


class _Kinds(NamedTuple):
    """Classes, and which of them each row has."""

    names: list[str]
    places: npt.NDArray[np.int64]


@dataclass(slots=True)
class Survey:
    """What the first look shows: rows by split and class in the order of their lots, suspicious ones, the ranges of columns."""

    seed: int
    wanted: int
    suspicions: list[Suspicion]
    label: str | None
    classes: frozenset[str]
    splits: set[str] = field(default_factory=set)
    buckets: dict[tuple[str, str], list[tuple[float, RowId]]] = field(default_factory=dict)
    class_of: dict[RowId, str] = field(default_factory=dict)  # of suspicious rows
    columns: dict[str, list[npt.NDArray[np.float64]]] = field(default_factory=dict)

    def look(self, data: TableSet, progress: Progress | None, total: int) -> None:
        """Go through all rows."""
        done = 0
        chances = [np.random.default_rng([self.seed & 0xFFFFFFFF, number]) for number in range(len(data.parts))]
        for piece in pieces(data):
            keys = chances[piece.part].random(piece.rows)
            file = data.parts[piece.part].file
            self.splits.add(piece.split)
            kinds = self._kinds(piece.chunk)
            self._choose(piece, keys, kinds)
            for suspicion in self.suspicions:
                if suspicion.is_about(file):
                    before = len(suspicion.found)
                    suspicion.look(piece, keys)
                    self._name([*suspicion.found[before:], *(one for _, one in suspicion.edges.values())], piece, kinds)
            self._measure(piece.chunk)
            done += piece.rows
            if progress:
                progress(done, max(done, total))
        medians = {name: float(np.median(np.concatenate(some))) for name, some in self.columns.items() if any(map(len, some))}
        for suspicion in self.suspicions:
            suspicion.settle(medians)

    def _kinds(self, chunk: Chunk) -> _Kinds:
        """The class of each row; all have the same one, without a name, where there are none."""
        name = label_column(list(chunk), self.label)
        if not self.classes or name is None or chunk[name].counts is not None or chunk[name].values.ndim != 1:
            rows = next(iter(chunk.values())).rows
            return _Kinds([""], np.zeros(rows, np.int64))
        values = chunk[name].values
        kinds, places = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)
        return _Kinds([str(kind) for kind in kinds.tolist()], places.reshape(-1))

    def _choose(self, piece: Piece, keys: npt.NDArray[np.float64], kinds: _Kinds) -> None:
        """Keep the rows with the smallest lots of each split and class."""
        order = np.lexsort((keys, kinds.places))
        edges = np.searchsorted(kinds.places[order], np.arange(len(kinds.names) + 1))
        for place, name in enumerate(kinds.names):
            first = order[edges[place] : edges[place + 1]][: self.wanted]
            bucket = self.buckets.setdefault((name, piece.split), [])
            bucket += [(float(keys[one]), piece.id_of(one)) for one in first]
            bucket.sort()
            del bucket[self.wanted :]

    def _name(self, rows: list[RowId], piece: Piece, kinds: _Kinds) -> None:
        for row in rows:
            position = row.number - piece.first
            if self.classes and (row.table, row.split) == (piece.table, piece.split) and 0 <= position < piece.rows:
                self.class_of[row] = kinds.names[kinds.places[position]]

    def _measure(self, chunk: Chunk) -> None:
        for name, column in chunk.items():
            kept = self.columns.setdefault(name, [])
            if column.values.dtype.kind in "iuf" and len(kept) < _KEPT // _SAMPLED:
                flat = column.values.reshape(-1)
                values = flat[:: max(1, len(flat) // _SAMPLED)].astype(np.float64)
                kept.append(values[np.isfinite(values)])

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Where the values of a column usually lie: between the 1st and the 99th percentile."""
        found = {}
        for name, some in self.columns.items():
            values = np.concatenate(some) if some else np.empty(0)
            if values.size:
                low, high = np.quantile(values, (0.01, 0.99))
                found[name] = (float(low), float(high)) if high > low else (float(values.min()), float(values.max()))
        return found


def fetch(
    data: TableSet, survey: Survey, rows: Collection[RowId], partners: Collection[Partner]
) -> dict[RowId | Partner, Fetched]:
    """The values of rows, and of the rows that they are equal to; the reading ends when all are found."""
    found: dict[RowId | Partner, Fetched] = {}
    wanted, open_ones = set(rows), list(partners)
    for piece in pieces(data):
        for row in [one for one in wanted if (one.table, one.split) == (piece.table, piece.split)]:
            position = row.number - piece.first
            if 0 <= position < piece.rows:
                found[row] = Fetched(row, piece.part, int(piece.places[position]), row_at(piece.chunk, position))
                wanted.discard(row)
        for partner, position in _equals(piece, survey, open_ones):
            row = piece.id_of(position)
            found[partner] = Fetched(row, piece.part, int(piece.places[position]), row_at(piece.chunk, position))
            open_ones.remove(partner)
        if not wanted and not open_ones:
            break
    return found


def _equals(piece: Piece, survey: Survey, partners: list[Partner]) -> list[tuple[Partner, int]]:
    """Rows of a piece that are what partners look for."""
    found = []
    numbers: dict[tuple[str, ...], npt.NDArray[Any]] = {}
    for partner in partners:
        suspicion = survey.suspicions[partner.suspicion]
        fits = suspicion.fits_split(partner.of.split, piece.split, len(survey.splits))
        if not fits or not all(name in piece.chunk for name in suspicion.keys):
            continue
        if suspicion.keys not in numbers:
            numbers[suspicion.keys] = numbers_of(piece.chunk, suspicion.keys)
        same = np.flatnonzero(numbers[suspicion.keys] == np.uint64(suspicion.equal_to[partner.of]))
        position = next((one for one in same.tolist() if piece.id_of(one) != partner.of), None)
        if position is not None:
            found.append((partner, position))
    return found
