"""`holdfast tables`: what can be asked of a run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import typer

from holdfast.cli.options import AsJson, Target

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.signals.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """One table of a run, as a person needs to know it."""

    table: str
    rows: int
    a_row_is: str
    empty_because: str
    columns: dict[str, str]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("tables")(tables)


def tables(target: Target = None, as_json: AsJson = False) -> None:
    """List what can be asked of a run: tables, rows, columns, and why one is empty."""
    from holdfast.probe.target import resolve

    found = describe(resolve(target))
    if as_json:
        print(json.dumps([asdict(one) for one in found], ensure_ascii=False))
        return
    from rich.console import Console

    from holdfast.cli.show import WIDTH

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    for one in found:
        _print(console, one)


def describe(run: RunFolder) -> list[TableInfo]:
    """The tables of a run, and the view `python.torch_trace`."""
    from holdfast.probe.views import TORCH_TRACE, all_tables, open_table
    from holdfast.signals.schema import TABLES

    found = []
    for name in all_tables(run):
        files, known = open_table(run, name), TABLES.get(name)
        says = {column.name: column.says for column in known.columns} if known else {}
        says |= {"rank": "the rank that recorded it", "part": "which training of that rank, in order; 0 is the first"}
        found.append(
            TableInfo(
                table=name,
                rows=files.rows,
                a_row_is=known.a_row_is if known else "a table that this version does not know",
                empty_because=known.empty_because if known and not files.rows else "",
                columns={column: says.get(column, "") for column in files.columns},
            )
        )
        if name == "modules":
            found.append(_torch_trace(TORCH_TRACE, found[-1]))
    return found


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
    said = "the same rows as `modules`, under the names that other probes use"
    return TableInfo(table=name, rows=modules.rows, a_row_is=said, empty_because="", columns=columns)


def _print(console: Console, one: TableInfo) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 2), expand=False)
    head.add_column(width=18)
    head.add_column(width=9, justify="right")
    head.add_column()
    rows = Text(f"{one.rows:,}") if one.rows else Text("empty", style="yellow")
    head.add_row(Text(one.table, style="bold"), rows, Text(one.a_row_is))
    console.print(head)
    console.print(Padding(Text(", ".join(one.columns), style="dim"), (0, 0, 0, 4)))
    if one.empty_because:
        console.print(Padding(Text(f"empty: {one.empty_because}", style="yellow"), (0, 0, 0, 4)))
