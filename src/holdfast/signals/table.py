"""A growing table: segments one after the other, the next one made ready by another thread before it is needed.

The training thread only ever stores into mapped memory. Files are made by the recorder's helper thread. While that
one is stuck on a slow disk, or the disk is full, a bounded number of rows is held in memory for the next segment;
rows beyond that are dropped and counted, and the trouble is reported.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.signals.schema import Table
from holdfast.signals.segment import SegmentWriter, segment_path

_GROWTH = 4
_WAIT_SECONDS = 0.05  # at most once for each file, and only when rows come faster than files can be made
_RETRY_SECONDS = 5.0


class TableWriter:
    """Append rows to one table.

    `run_later` hands a job to the helper thread; `on_trouble` hears of each error when a file could not be made.
    """

    def __init__(
        self,
        folder: Path,
        table: Table,
        *,
        run_later: Callable[[Callable[[], None]], None],
        on_trouble: Callable[[str, OSError], None],
    ) -> None:
        self.table = table
        self.dropped = 0
        self._folder = folder / table.name
        self._run_later, self._on_trouble = run_later, on_trouble
        self._number, self._total = 0, 0
        self._capacity = table.first_segment_rows
        self._segment: SegmentWriter | None = None
        self._spare: SegmentWriter | None = None
        self._spare_ready = threading.Event()
        self._asked = self._waited = self._closed = False
        self._failed_at: float | None = None
        self._held: list[tuple[float | int, ...]] = []
        self._hold_at_most = table.first_segment_rows - 1  # so that they and one more fit into any segment
        self._ask_for_spare()

    @property
    def rows(self) -> int:
        """Rows published so far."""
        return self._total

    def append(self, row: Sequence[float | int]) -> None:
        """Append one row, in the order of the table's columns."""
        segment = self._segment
        if segment is None or segment.rows == segment.capacity:
            segment = self._next_segment()
            if segment is None:
                self._hold([tuple(row)], of=1)
                return
        segment.append(row)
        self._total += 1
        if not self._asked and segment.rows * 2 >= segment.capacity:
            self._ask_for_spare()

    def extend(self, columns: Sequence[npt.NDArray[Any] | float | int]) -> None:
        """Append many rows at once; a plain number stands for a whole column of it."""
        count = next(len(values) for values in columns if isinstance(values, np.ndarray))
        ready = [values if isinstance(values, np.ndarray) else np.full(count, values) for values in columns]
        start = 0
        while start < count:
            segment = self._segment
            if segment is None or segment.room == 0:
                segment = self._next_segment()
                if segment is None:
                    self._hold(self._as_rows(ready, start, start + self._may_hold), of=count - start)
                    return
            part = min(segment.room, count - start)
            segment.extend(ready, start, part)
            self._total += part
            start += part
            if not self._asked and segment.rows * 2 >= segment.capacity:
                self._ask_for_spare()

    def close(self) -> None:
        """Seal what is open; later rows are dropped."""
        if self._held:
            self._next_segment()
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.seal()
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.seal()
            with contextlib.suppress(OSError):
                spare.path.unlink()
        self.let_go()

    def let_go(self) -> None:
        """Forget the files without touching them, and drop every later row: in a forked child they are the parent's."""
        self._segment = self._spare = None
        self._closed = True
        self.dropped += len(self._held)
        self._held.clear()

    def _ask_for_spare(self) -> None:
        self._asked, self._waited, self._failed_at = True, False, None
        self._spare_ready.clear()
        self._run_later(self._make_spare)

    def _next_segment(self) -> SegmentWriter | None:
        """Switch to the prepared segment; None while there is none to be had."""
        if self._closed or not self._spare_is_ready():
            return None
        if self._segment is not None:
            self._segment.seal()
        self._segment, self._spare, self._asked = self._spare, None, False
        self._write_held()
        return self._segment

    def _spare_is_ready(self) -> bool:
        if self._failed_at is not None:
            if time.monotonic() - self._failed_at > _RETRY_SECONDS:
                self._ask_for_spare()
            return False
        if not self._asked:
            self._ask_for_spare()
        if not self._waited:
            self._waited = True
            self._spare_ready.wait(_WAIT_SECONDS)
        return self._spare_ready.is_set() and self._spare is not None

    @property
    def _may_hold(self) -> int:
        return 0 if self._closed else self._hold_at_most - len(self._held)

    def _hold(self, rows: Sequence[tuple[float | int, ...]], *, of: int) -> None:
        """Keep the first rows for the next segment, as many as are allowed; the rest of the `of` rows is dropped."""
        kept = rows[: self._may_hold]
        self._held += kept
        self.dropped += of - len(kept)

    def _as_rows(self, columns: Sequence[npt.NDArray[Any]], start: int, end: int) -> list[tuple[float | int, ...]]:
        typed = zip(columns, self.table.columns, strict=True)
        return list(zip(*(values[start:end].astype(column.kind.dtype).tolist() for values, column in typed), strict=True))

    def _write_held(self) -> None:
        held, self._held = self._held, []
        for row in held:
            try:
                self._segment.append(row)  # type: ignore[union-attr]
                self._total += 1
            except (TypeError, ValueError):  # its caller is gone; a row of the wrong type must not stop the others
                self.dropped += 1

    def _make_spare(self) -> None:
        """Make the next file; runs in the helper thread."""
        if self._closed:
            return
        try:
            self._folder.mkdir(exist_ok=True)
            self._spare = SegmentWriter(
                segment_path(self._folder, self._number), self.table, capacity=self._capacity, first_row=self._next_first_row()
            )
        except OSError as error:
            self._failed_at = time.monotonic()
            self._on_trouble(f"table {self.table.name}", error)
        else:
            self._number += 1
            self._capacity = min(self._capacity * _GROWTH, self.table.segment_rows)
        self._spare_ready.set()

    def _next_first_row(self) -> int:
        segment = self._segment
        return 0 if segment is None else segment.first_row + segment.capacity
