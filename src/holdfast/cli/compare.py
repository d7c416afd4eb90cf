"""`holdfast compare`: two or more runs on one metric, with the uncertainty of their difference and the settings that differ."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import AsJson, NamedTargets, all_of, run_names
from holdfast.errors import HoldfastError, StorageError

if TYPE_CHECKING:
    from holdfast.diagnosis.run_comparison import ComparedRun, Comparison
    from holdfast.signals.curves import Curves
    from holdfast.signals.run_folder import RunFolder


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("compare")(compare)


def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN RUN…",
            help="Runs (name, folder, HOST:PORT/RUN), logs or folders.",
            show_default=False,
            autocompletion=run_names,
        ),
    ] = None,
    target: NamedTargets = None,
    metric: Annotated[
        str | None, typer.Option("--metric", metavar="NAME", help="What to compare, such as val_loss.", show_default=False)
    ] = None,
    at_epoch: Annotated[
        float | None,
        typer.Option(
            "--at-epoch", metavar="N", help="Compare at this epoch; default: the last that all have.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
    page_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with the curves to this file.", show_default=False)
    ] = None,
) -> None:
    """Compare runs on one metric at the same epoch: which is better, by how much, how sure, and what was set differently.

    Runs whose names differ only in a number at the end (base-1, base-2) count as seeds of one configuration.
    """
    from holdfast.diagnosis.run_comparison import as_row
    from holdfast.diagnosis.run_comparison import compare as compare_runs

    with TemporaryDirectory(prefix="holdfast-") as copies:
        comparison = compare_runs(_sources(all_of(runs, target), Path(copies)), metric=metric, at_epoch=at_epoch)
    if page_file is not None:
        _write_page(page_file, comparison)
    if as_json:
        print(json.dumps(as_row(comparison), ensure_ascii=False, default=str))
    else:
        _show(comparison)


def _sources(targets: Sequence[str], copies: Path) -> list[tuple[Curves, RunFolder | None]]:
    from holdfast.cli.diagnose import read_target
    from holdfast.logs.series_choice import SeriesChoice

    sources = []
    for number, name in enumerate(targets):
        for source in read_target(name, SeriesChoice(), copies=copies / str(number)):
            if isinstance(source, HoldfastError):
                raise source
            sources.append(source)
    return sources


def _show(comparison: Comparison) -> None:
    from rich.table import Table

    from holdfast.cli.output import output
    from holdfast.diagnosis.run_comparison import sentence

    console = output()
    console.print(f"{comparison.metric} ({comparison.better} is better)", style="bold")
    _print(console, Table(*_columns(comparison), box=None, pad_edge=False), map(_cells(comparison), comparison.runs))
    console.print()
    for gap in comparison.gaps:
        style = {True: "green", False: "red", None: ""}[gap.is_better]
        console.print(sentence(comparison, gap), style=style)
    if note := _note(comparison):
        console.print(note, style="dim")
    if comparison.settings:
        console.print("\nsettings that differ", style="bold")
        names = ["", *(run.name for run in comparison.runs)]
        _print(console, Table(*names, box=None, pad_edge=False, padding=(0, 2, 0, 0)), _setting_rows(comparison))


def _print(console: Any, table: Any, rows: Any) -> None:
    for row in rows:
        table.add_row(*row)
    for column in table.columns:
        column.overflow = "fold"
    console.print(table)


def _columns(comparison: Comparison) -> tuple[str, ...]:
    return "run", "best", "last", f"at {comparison.unit} {comparison.position:,g}", "time"


def _cells(comparison: Comparison) -> Any:
    from holdfast.cli.show import duration, number

    def cells(run: ComparedRun) -> tuple[str, ...]:
        best, where = run.best
        time = duration(run.seconds) + (f" × {run.ranks}" if run.ranks > 1 and run.seconds else "")
        value, at = run.at(comparison.position)
        earlier = f" ({comparison.unit} {at:,g})" if at != comparison.position else ""  # it was not evaluated there
        last = f"{number(float(run.curve.values[-1]))} ({comparison.unit} {run.positions[-1]:,g})"
        return run.name, f"{number(best)} ({comparison.unit} {where:,g})", last, number(value) + earlier, time

    return cells


def _note(comparison: Comparison) -> str:
    if comparison.has_seeds or all(gap.low is None for gap in comparison.gaps):
        return ""
    return "One run each: how much seeds differ is not included. Several seeds: name the runs base-1, base-2, …"


def _setting_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    from holdfast.cli.show import DASH

    def shown(value: Any) -> str:
        return DASH if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    return [(name, *map(shown, values)) for name, values in comparison.settings.items()]


def _write_page(path: Path, comparison: Comparison) -> None:
    from markupsafe import Markup

    from holdfast.diagnosis.plot import plot_scripts
    from holdfast.diagnosis.run_comparison import drawing, sentence
    from holdfast.drawing.pages import rendered

    page = rendered(
        "compare.html",
        title=" and ".join(comparison.groups) if len(comparison.groups) < 4 else f"{len(comparison.groups)} runs",
        comparison=comparison,
        plot=Markup(drawing(comparison)),
        scripts=Markup(plot_scripts()),
        columns=_columns(comparison),
        rows=list(map(_cells(comparison), comparison.runs)),
        sentences=[*(sentence(comparison, gap) for gap in comparison.gaps), _note(comparison)],
        settings=_setting_rows(comparison),
    )
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}.", fix="name another file") from error
    print(f"written: {path}", file=sys.stderr)
