"""The tables of a run: rows, columns, and why one is empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.probe.sources import Source, all_tables, open_all
from holdfast.probe.views import BACKTRACE, TORCH_TRACE
from holdfast.signals.schema import TABLES

_WHOSE = {
    "host": "the machine that the row comes from",
    "run": "the run that the row comes from",
    "rank": "the rank that recorded it",
    "part": "which training of that rank, in order; 0 is the first",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """One table of a run, as a person needs to know it."""

    table: str
    rows: int
    a_row_is: str
    empty_because: str
    columns: dict[str, str]


def describe(sources: Sequence[Source]) -> list[TableInfo]:
    """The tables of one source or several, and the views of `python`."""
    infos = []
    for name in all_tables(sources):
        files, table = open_all(sources, name), TABLES.get(name)
        descriptions = {column.name: column.description for column in table.columns} if table else {}
        rows = files.rows
        infos.append(
            TableInfo(
                table=name,
                rows=rows,
                a_row_is=table.a_row_is if table else "a table that this version does not know",
                empty_because=table.empty_because if table and not rows else "",
                columns={column: {**descriptions, **_WHOSE}.get(column, "") for column in files.columns},
            )
        )
        if name == "modules":
            infos.append(_torch_trace(TORCH_TRACE, infos[-1]))
        if name == "stacks":
            infos.append(_backtrace(BACKTRACE, infos[-1]))
    return infos


def _backtrace(name: str, stacks: TableInfo) -> TableInfo:
    shown = ("depth", "func", "file", "lineno", "thread_name", "holds_gil", "rank", "pid", "thread", "time")
    description = "one Python frame of the training thread (lowest rank) in the newest stacks; a live run is sampled now"
    columns = {column: stacks.columns[column] for column in shown}
    return TableInfo(table=name, rows=stacks.rows, a_row_is=description, empty_because="", columns=columns)


def _torch_trace(name: str, modules: TableInfo) -> TableInfo:
    columns = {
        "step": modules.columns["step"],
        "module": modules.columns["module"],
        "stage": modules.columns["stage"],
        "duration": modules.columns["seconds"],
        "allocated": "gpu_allocated, or host_rss without a GPU",
        "time": modules.columns["time"],
        "rank": modules.columns["rank"],
    }
    description = "the same rows as `modules`, under the names that other probes use"
    return TableInfo(table=name, rows=modules.rows, a_row_is=description, empty_because="", columns=columns)
