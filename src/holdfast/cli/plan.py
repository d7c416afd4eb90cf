"""`holdfast plan`: how much memory a training needs, the largest batch that fits, and what each lever saves."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import AsJson
from holdfast.errors import UsageError
from holdfast.units import size

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.environment.plan.measuring import Facts

_WORKERS, _PREFETCH = (0, 2, 4, 8), 2


def register(app: typer.Typer) -> None:
    """Add the verb. Options end at the first word of the command: what follows is the command's own."""
    app.command("plan", context_settings={"allow_interspersed_args": False})(plan)


def plan(
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND...", show_default=False)] = None,
    effective: Annotated[
        int | None, typer.Option(min=1, help="Effective batch size: shows how to reach it with accumulation.", show_default=False)
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Number of predictions that an evaluation keeps in memory.", show_default=False)
    ] = None,
    row_bytes: Annotated[int, typer.Option("--row-bytes", min=1, help="Bytes per prediction.")] = 200,
    timeout: Annotated[float, typer.Option(min=1, help="Time limit of one measurement in seconds.")] = 300.0,
    as_json: AsJson = False,
) -> None:
    """Measure the memory of a few training steps, and predict the largest batch for each GPU size.

    COMMAND is a training script with a DataLoader, or package.module:factory, which returns a model and its inputs. Each
    measurement runs a few steps in a separate process.
    """
    from holdfast.environment.plan.measuring import measure_training
    from holdfast.environment.plan.trial import MeasuredTraining, measured_command

    if not command:
        raise UsageError("which training?", fix="holdfast plan -- python train.py, or holdfast plan package.module:factory")
    facts = measure_training(MeasuredTraining(command=measured_command(command), seconds=timeout), _tell)
    if as_json:
        print(json.dumps(_row(facts, effective, rows, row_bytes)))
    else:
        _show(facts, effective, rows, row_bytes)


def _tell(text: str) -> None:
    print(f"holdfast: {text}", file=sys.stderr)


def _row(facts: Facts, effective: int | None, rows: int | None, row_bytes: int) -> dict[str, Any]:
    from holdfast.environment.plan.options import host_need, levers, what_fits

    return {
        "device": facts.row["device"],
        "own_batch": facts.own_batch,
        "dataset_size": facts.dataset_size,
        "fixed": round(facts.line.fixed),
        "per_sample": round(facts.line.per_sample),
        "nonlinear": facts.line.bent,
        "points": [{"batch": point.batch, "peak": point.peak} for point in facts.points],
        "parameters": facts.row["parameters"],
        "gradients": facts.row["gradients"],
        "optimizer": facts.row["optimizer"],
        "fits": [fits.as_row() for fits in what_fits(facts, effective)],
        "levers": [lever.as_row() for lever in levers(facts)],
        "host": {str(count): round(host_need(facts, count, _PREFETCH, facts.own_batch)) for count in _WORKERS},
        "predictions": rows * row_bytes if rows else None,
    }


def _show(facts: Facts, effective: int | None, rows: int | None, row_bytes: int) -> None:
    from holdfast.cli.output import output

    console = output()
    _show_need(console, facts)
    _show_fits(console, facts, effective)
    _show_levers(console, facts)
    _show_host(console, facts)
    if rows:
        print(f"\n{rows:,} predictions kept in memory: {size(rows * row_bytes)} ({row_bytes} bytes each)")
        print("  fix: holdfast.PredictionWriter streams them to disk in bounded memory")


def _show_need(console: Console, facts: Facts) -> None:
    row = facts.row
    where = f"on {row['device']}" if facts.on_gpu else "on the CPU (resident memory; a GPU needs about the same for tensors)"
    console.print(f"measured {where}: batches of {', '.join(str(point.batch) for point in facts.points)}")
    held = f"weights {size(row['parameters'] + row['others'])}, gradients {size(row['gradients'])}"
    console.print(f"  fixed       {size(facts.line.fixed)}   ({held}, optimizer {size(row['optimizer'])})")
    console.print(f"  per sample  {size(facts.line.per_sample)}")
    if facts.line.bent:
        console.print("  memory is not linear in the batch size: treat larger batches as a guess")


def _show_fits(console: Console, facts: Facts, effective: int | None) -> None:
    from rich.table import Table

    from holdfast.environment.plan.options import what_fits

    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    for name in ("largest batch", *facts.lines):
        table.add_column(name, justify="left" if name == "largest batch" else "right")
    cards: dict[str, list[str]] = {}
    for fits in what_fits(facts, effective):
        more = f" × {fits.accumulate}" if fits.accumulate and fits.accumulate > 1 else ""
        batch = min(fits.batch, effective or fits.batch)
        cards.setdefault(fits.card, []).append(f"{batch:,}{more}" if fits.batch else "does not fit")
    for card, cells in cards.items():
        table.add_row(card, *cells)
    console.print()
    console.print(table)
    if facts.dataset_size:
        console.print(f"  limited to the data set: {facts.dataset_size:,} samples")
    if effective:
        console.print(f"  for an effective batch of {effective}: batch × steps to accumulate")


def _show_levers(console: Console, facts: Facts) -> None:
    from rich.table import Table

    from holdfast.environment.plan.options import levers

    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    for name in (f"at your batch of {facts.own_batch}", "peak", "saves", ""):
        table.add_column(name, justify="right" if name in ("peak", "saves") else "left")
    now = facts.line.peak(facts.own_batch)
    table.add_row("as written", size(now), "", "")
    for lever in levers(facts):
        table.add_row(lever.name, size(lever.peak), f"{lever.saves / now:.0%}", lever.how)
    console.print()
    console.print(table)


def _show_host(console: Console, facts: Facts) -> None:
    from holdfast.environment.plan.options import host_need

    needs = [f"{count}: {size(host_need(facts, count, _PREFETCH, facts.own_batch))}" for count in _WORKERS]
    console.print(f"\nhost memory by loader workers   {'   '.join(needs)}")
