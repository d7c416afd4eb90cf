"""In a world of many ranks most of them write fewer rows, so that a day of thousands of ranks fits on a disk and into a query.

The first ranks write everything. The others write one row in about half a minute, at steps that all ranks have in common, and
leave out what one rank shows for all.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.signals.schema import Table

MANY_RANKS, IN_FULL = 64, 8
EVERY_SECONDS = 30.0
SEGMENT_ROWS = {"steps": 2048}  # a day; room is reserved for a whole segment, and thousands of ranks have one each
_OTHER_SEGMENT_ROWS = 1024
_STEP_COLUMNS = (
    *("step", "time", "loss", "grad_norm", "weight_norm", "step_seconds", "data_seconds", "samples", "gpu_allocated", "host_rss"),
)
LEFT_OUT = frozenset({"parameters", "modules", "inputs", "loader", "groups"})
_LONGEST_PAUSE = 600.0
_INTERVALS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # from 100 on, ranks compare their weights at every multiple


class Thinning:
    """Which steps of a rank become rows: every n-th, n by how long a step takes."""

    def __init__(self) -> None:
        self.every = 1
        self._mean = 0.0

    def keeps(self, step: int) -> bool:
        """Whether this step becomes a row."""
        return step % self.every == 0

    def ended(self, step: int, seconds: float) -> bool:
        """The same when the step has ended; a row that is written sets the interval to the next one."""
        if seconds == seconds:  # the first step has no duration
            self._mean = self._mean + 0.1 * (seconds - self._mean) if self._mean else seconds
        kept = self.keeps(step)
        if kept and self._mean > 0.0:
            self.every = next((n for n in _INTERVALS if n * self._mean >= EVERY_SECONDS), _INTERVALS[-1])
        return kept


def table_for(table: Table, rank: int, world: int) -> Table | None:
    """The table as the rank writes it, in smaller files the more ranks there are; None if it does not write it."""
    if thinning_for(rank, world) is None:
        return replace(
            table, segment_rows=max(table.first_segment_rows, min(table.segment_rows, table.segment_rows * 8 // world))
        )
    if table.name in LEFT_OUT:
        return None
    columns = tuple(column for column in table.columns if table.name != "steps" or column.name in _STEP_COLUMNS)
    rows = SEGMENT_ROWS.get(table.name, _OTHER_SEGMENT_ROWS)
    return replace(table, columns=columns, first_segment_rows=rows, segment_rows=rows)


def pause_after(cost: float, ranks: int) -> float:
    """Seconds to wait after a look at all ranks that took `cost` seconds of CPU time: with many ranks, 1 % of a core."""
    return min(_LONGEST_PAUSE, 100.0 * cost) if ranks > MANY_RANKS else 0.0


def thinning_for(rank: int, world: int) -> Thinning | None:
    """None where a rank writes everything."""
    return Thinning() if world > MANY_RANKS and rank >= IN_FULL else None
