"""Two looks at rows: the first finds out which ones there are to choose from, the second fetches those that were chosen."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.columns import Chunk, TableSet, label_column
from holdfast.data.scan import Progress
from holdfast.data.visualize.row_pieces import Piece, RowId, pieces, row_at
from holdfast.data.visualize.row_suspicion import Suspicion, numbers_of

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
