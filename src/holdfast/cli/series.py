"""`holdfast diagnose --series`: the series of a run, and what each of them is taken for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.cli.show import DASH, number

if TYPE_CHECKING:
    from holdfast.signals.curves import Curve, Curves

_COLUMNS = ("series", "role", "split", "better", "points", "first", "last")
_MOST = 46  # of a name


def list_series(runs: Sequence[Curves], *, as_json: bool) -> None:
    """To standard output; the series that speak for their role are marked."""
    if as_json:
        rows = [{"name": run.name, "source": run.source, "notes": list(run.notes), "series": _rows(run)} for run in runs]
        print(json.dumps({"runs": rows}, ensure_ascii=False))
        return

    from holdfast.cli.output import output

    console = output()
    for place, run in enumerate(runs):
        if place:
            console.print()
        _show(console, run)


def _rows(run: Curves) -> list[dict[str, Any]]:
    from holdfast.cli.show import for_json

    names = ("name", "role", "split", "better", "points", "first", "last", "used")
    used = _used(run)
    return [
        dict(zip(names, (*_facts(curve), for_json(_end(curve, 0)), for_json(_end(curve, -1)), used.get(id(curve))), strict=True))
        for curve in run.curves
    ]


def _show(console: Any, run: Curves) -> None:
    from rich.table import Table
    from rich.text import Text

    console.print(Text.assemble((run.name, "bold"), (f"   {run.source}", "dim")))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in _COLUMNS:
        right = name in ("points", "first", "last")
        table.add_column(name, justify="right" if right else "left", no_wrap=True, max_width=_MOST if name == "series" else None)
    used = _used(run)
    for curve in run.curves:
        name, role, split, better, points = _facts(curve)
        style = "bold" if id(curve) in used else "" if role != "other" else "dim"
        word = f"{role} *" if id(curve) in used else role
        cells = (name, word, split, better or DASH, number(points), number(_end(curve, 0)), number(_end(curve, -1)))
        table.add_row(*(Text(cell, style) for cell in cells))
    console.print(table)
    for note in run.notes:
        console.print(f"  {note}", style="dim")


def _used(run: Curves) -> dict[int, str]:
    """The series that are judged: one for each loss, and the metrics' first."""
    chosen = {"train-loss": run.train_loss, "val-loss": run.val_loss, "metric": next(iter(run.metrics), None)}
    return {id(curve): flag for flag, curve in chosen.items() if curve is not None}


def _facts(curve: Curve) -> tuple[str, str, str, str | None, int]:
    return curve.name, curve.role, curve.split, curve.better, len(curve)


def _end(curve: Curve, place: int) -> float | None:
    return float(curve.values[place]) if len(curve) else None
