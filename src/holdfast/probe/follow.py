"""The rows of a table as they come: each look gives those that were published since the one before."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from holdfast.errors import DamagedSegment
from holdfast.probe.pieces import parquet_path, segment_numbers
from holdfast.probe.rows import Column, _empty, _from_parquet, _from_segment, _kind, _text, in_order
from holdfast.signals.run_folder import printed_folder
from holdfast.signals.schema import Kind
from holdfast.signals.segment import Segment, has_only, segment_path


class Follower:
    """The rows of a table, and of `evaluations` also those that were read from the output."""

    def __init__(self, folder: Path, table: str, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        folders = (folder, printed_folder(folder)) if table == "evaluations" else (folder,)
        timed = columns if len(folders) == 1 else tuple(dict.fromkeys((*columns, "time")))
        self._parts = [_PartFollower(part, table, timed) for part in folders]

    @property
    def position(self) -> list[list[int]]:
        """How far it has read: another one that is set there reads on. It stays right when segments become Parquet."""
        return [[part.number, part.read] for part in self._parts]

    @position.setter
    def position(self, position: list[list[int]]) -> None:
        for part, (number, read) in zip(self._parts, position, strict=True):
            part.number, part.read = number, read

    def new_rows(self, at_most: int = 4096) -> dict[str, Column]:
        """The rows since the last call, oldest first and no more than about `at_most`; see `last_rows` for their form."""
        parts = [part.new_rows(at_most) for part in self._parts]
        rows = in_order(parts) if len(parts) > 1 else parts[0]
        return {name: rows[name] for name in self._columns}


class _PartFollower:
    """Reads on from where it was; the cost of a look does not depend on how long the run is."""

    def __init__(self, folder: Path, table: str, columns: Sequence[str]) -> None:
        self._folder, self._table, self._columns = folder, table, tuple(columns)
        self.number, self.read = 0, 0
        self._none = _no_rows(table, self._columns)
        self._path = (-1, "")  # of the current file, with its number

    def new_rows(self, at_most: int = 4096) -> dict[str, Column]:
        """The rows since the last call, oldest first and no more than about `at_most`; see `last_rows` for their form."""
        if has_only(self._current(), self.read):
            return self._none
        parts, num_rows = [self._none], 0
        while num_rows < at_most:
            part, over = self._take(at_most - num_rows)
            if part is not None:
                parts.append(part)
                num_rows += len(part[self._columns[0]])
            if not over:
                break
        if not num_rows:
            return self._none
        joined = {name: np.concatenate([part[name] for part in parts]) for name in self._columns}
        is_text = {name: _kind(self._table, name) is Kind.STRING for name in self._columns}
        return {name: _text(self._folder, values) if is_text[name] else values for name, values in joined.items()}

    def _current(self) -> str:
        if self._path[0] != self.number:
            self._path = self.number, str(segment_path(self._folder / self._table, self.number))
        return self._path[1]

    def _take(self, at_most: int) -> tuple[dict[str, Column] | None, bool]:
        """Rows of the current file, and whether it is used up and another one follows."""
        folder = self._folder / self._table
        try:
            segment = Segment(segment_path(folder, self.number))
        except (OSError, DamagedSegment):
            return self._take_parquet(folder, at_most)
        unread = segment.rows - self.read
        part = self._cut(_from_segment(segment, self._table, self._columns, unread), at_most) if unread > 0 else None
        return part, self._advance((segment.sealed and self.read >= segment.rows) or self._follows(folder, segment))

    def _take_parquet(self, folder: Path, at_most: int) -> tuple[dict[str, Column] | None, bool]:
        path = parquet_path(folder, self.number)
        if not path.exists():  # not made yet; or lost, and then there are later ones
            return None, self._advance(any(number > self.number + 1 for number in segment_numbers(folder)))
        whole = _from_parquet(path, self._table, self._columns, 1 << 40)
        rows = len(whole[self._columns[0]])
        part = self._cut({name: values[self.read :] for name, values in whole.items()}, at_most)
        return part, self._advance(self.read >= rows)

    def _cut(self, part: dict[str, Column], at_most: int) -> dict[str, Column]:
        part = {name: values[:at_most] for name, values in part.items()}
        self.read += len(part[self._columns[0]])
        return part

    def _advance(self, over: bool) -> bool:
        if over:
            self.number, self.read = self.number + 1, 0
        return over

    def _follows(self, folder: Path, segment: Segment) -> bool:
        """A segment that was full but not sealed when we looked (its writer may have died between the two)."""
        return self.read >= segment.capacity and segment_path(folder, self.number + 1).exists()


@functools.cache  # one for thousands of ranks
def _no_rows(table: str, columns: tuple[str, ...]) -> dict[str, Column]:
    return {name: _empty(0, table, name) for name in columns}
