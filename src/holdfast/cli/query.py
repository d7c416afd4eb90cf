"""`holdfast query`: SQL over a run, live or finished."""

from __future__ import annotations

import csv
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import AllRuns, AsJson, Targets, all_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from holdfast.probe.sql import Answer

_FOLDED_AT_MOST = 6  # columns that may be folded to fit


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("query")(query)


def query(
    arguments: Annotated[
        list[str], typer.Argument(metavar="[RUN]... SQL", help="One SELECT, WITH or EXPLAIN; - reads it from stdin.")
    ],
    target: Targets = None,
    everything: AllRuns = False,
    as_json: AsJson = False,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = 1000,
    timeout: Annotated[float, typer.Option(min=0.1, help="Time limit in seconds.")] = 10.0,
) -> None:
    """Query a run with SQL, all ranks at once: live, hung or finished.

    Prints a table in a terminal, CSV in a pipe. `holdfast tables` lists the tables. With several runs or servers, rows have the
    columns host and run. Exit code 1: a machine did not answer.
    """
    from holdfast.cli.cluster_words import end, say_notes
    from holdfast.probe.cluster import find
    from holdfast.probe.cluster_query import query_all

    *runs, sql = arguments
    cluster = find(all_of(runs, target), everything=everything)
    answer = query_all(cluster, sys.stdin.read() if sql == "-" else sql, limit=limit, timeout=timeout)
    show_answer(answer, as_json=as_json)
    say_notes(answer.notes)
    if answer.cut:
        print(f"only the first {limit:,} rows; --limit {limit * 10} shows more", file=sys.stderr)
    end(cluster)


def show_answer(answer: Answer, *, as_json: bool = False) -> None:
    """Print the rows: as JSON, as a table in a terminal, as CSV elsewhere."""
    from holdfast.cli.show import for_json, unique

    if as_json:
        names = unique(answer.columns)
        rows = [dict(zip(names, map(for_json, row), strict=True)) for row in answer.rows]
        print(json.dumps(rows, ensure_ascii=False))
    elif answer.columns == ["explain_key", "explain_value"]:
        print("\n".join(str(row[1]) for row in answer.rows))
    elif sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        console.print(answer_table(answer, console.width))
    else:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(answer.columns)
        writer.writerows(answer.rows)


def answer_table(answer: Answer, width: int) -> RenderableType:
    """The rows as aligned columns, numbers to the right; one value a line where they do not fit beside each other."""
    from rich.table import Table
    from rich.text import Text

    cells = [[_cell(value) for value in row] for row in answer.rows]
    widths = [max(len(name), *(len(row[i]) for row in cells), 0) for i, name in enumerate(answer.columns)]
    if cells and sum(widths) + 2 * len(widths) > width and len(widths) > _FOLDED_AT_MOST:
        return _one_value_a_line(answer, cells)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(answer.columns):
        numeric = any(isinstance(row[index], (int, float)) for row in answer.rows)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


def _one_value_a_line(answer: Answer, cells: list[list[Text]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    for number, row in enumerate(cells, 1):
        table.add_row(Text(f"row {number}", style="bold"), Text())
        for name, value in zip(answer.columns, row, strict=True):
            table.add_row(Text(f"  {name}", style="dim"), value)
    return table


def _cell(value: Any) -> Text:
    from rich.text import Text

    if value is None:
        return Text("null", style="dim")
    if isinstance(value, float):
        return Text(f"{value:.6g}" if abs(value) < 1e6 or abs(value) >= 1e12 else f"{value:.3f}")
    return Text(str(value))
