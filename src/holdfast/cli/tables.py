"""`holdfast tables`: the tables of a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from holdfast.cli.options import AllRuns, AsJson, RunNames, Targets, all_of

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.probe.describe import TableInfo


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("tables")(tables)


def tables(runs: RunNames = None, target: Targets = None, everything: AllRuns = False, as_json: AsJson = False) -> None:
    """List the tables of a run: rows, columns, and why a table is empty. Several runs or servers are counted together."""
    from holdfast.cli.cluster_words import end
    from holdfast.probe.cluster import find
    from holdfast.probe.cluster_query import describe_cluster

    cluster = find(all_of(runs, target), everything=everything)
    infos = describe_cluster(cluster)
    if as_json:
        print(json.dumps([asdict(info) for info in infos], ensure_ascii=False))
    else:
        _show(infos)
    end(cluster)


def _show(infos: list[TableInfo]) -> None:

    from holdfast.cli.output import output

    console = output()
    for info in infos:
        _print(console, info)


def _print(console: Console, info: TableInfo) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 2), expand=False)
    head.add_column(width=18)
    head.add_column(width=9, justify="right")
    head.add_column()
    rows = Text(f"{info.rows:,}") if info.rows else Text("empty", style="yellow")
    head.add_row(Text(info.table, style="bold"), rows, Text(info.a_row_is))
    console.print(head)
    console.print(Padding(Text(", ".join(info.columns), style="dim"), (0, 0, 0, 4)))
    if info.empty_because:
        console.print(Padding(Text(f"empty: {info.empty_because}", style="yellow"), (0, 0, 0, 4)))
