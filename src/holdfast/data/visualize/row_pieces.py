"""The rows of tables, arrays, trees and data sets, each with a name under which it is found again.

A report counts the rows of a split from 0, within files that have the same columns; the same count is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.data.columns import Array, Chunk, Column, TableSet, Unreadable, by_split

_PLACE = "\0place"  # a column that is added, so that rows keep their places when they are put into splits


class RowId(NamedTuple):
    """A row: which of the tables with different columns, which split, and the how manyth row of it."""

    table: int
    split: str
    number: int


class Piece(NamedTuple):
    """Some rows of one split, in order. `places` are their numbers in the part (the file) they are from."""

    table: int
    split: str
    part: int
    first: int
    places: npt.NDArray[np.int64]
    chunk: Chunk

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.places)

    def id_of(self, position: int) -> RowId:
        """The name of one of its rows."""
        return RowId(self.table, self.split, self.first + int(position))


def pieces(data: TableSet) -> Iterator[Piece]:
    """All rows, once. What cannot be read on is left out, as validation does."""
    tables: dict[frozenset[str], int] = {}
    counted: dict[tuple[int, str], int] = {}
    for number, part in enumerate(data.parts):
        before = 0
        try:
            for chunk in part.chunks():
                if not chunk:
                    continue
                table = tables.setdefault(frozenset(chunk), len(tables))
                rows = next(iter(chunk.values())).rows
                placed = {**chunk, _PLACE: Column(np.arange(before, before + rows))}
                before += rows
                for split, some in by_split(part.split, placed):
                    places = some.pop(_PLACE).values
                    first = counted.get((table, split), 0)
                    counted[table, split] = first + len(places)
                    yield Piece(table, split, number, first, places, some)
        except Unreadable:
            continue


def row_at(chunk: Chunk, position: int) -> dict[str, Any]:
    """One row of a chunk: a number, a word or an array for each column."""
    return {name: _value(column, position) for name, column in chunk.items()}


def _value(column: Column, position: int) -> Any:
    if column.counts is None:
        value = column.values[position]
        return np.array(value) if isinstance(value, np.ndarray) else value
    start = int(column.counts[:position].sum())
    return np.array(column.values[start : start + int(column.counts[position])])


def put_together(row: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Arrays that were taken apart into columns, in their own shape again."""
    made: dict[str, Any] = {}
    for name, shape in shapes.items():
        whole = _whole(row, name, shape)
        if whole is not None:
            made[name] = whole
    gone = {key for name in made for key in row if key == name or key.startswith(f"{name}[")}
    return {**made, **{key: value for key, value in row.items() if key not in gone}}


def _whole(row: dict[str, Any], name: str, shape: tuple[int, ...]) -> Array | None:
    if isinstance(row.get(name), np.ndarray):
        return _shaped(row[name], shape)
    first = [row[key] for place in range(shape[0]) if (key := f"{name}[{place}]") in row]
    if first and len(first) == shape[0]:
        return _shaped(np.array(first), shape)
    last = [row[key] for place in range(shape[-1]) if (key := f"{name}[…, {place}]") in row]
    if last and len(last) == shape[-1]:
        return _shaped(np.stack([np.asarray(one).reshape(shape[:-1]) for one in last], axis=-1), shape)
    return None


def _shaped(values: Array, shape: tuple[int, ...]) -> Array | None:
    return values.reshape(shape) if values.size == int(np.prod(shape)) else None
