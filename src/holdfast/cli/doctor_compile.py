"""`holdfast doctor --compile`: torch.compile's modes on the user's model, side by side, and which one for which use."""

from __future__ import annotations

import json
import sys

import typer
from rich.table import Table
from rich.text import Text

from holdfast.cli.output import output
from holdfast.cli.show import DASH, WIDTH, duration, for_json, number, size
from holdfast.environment.compile_modes import EAGER, MODES, Measured, advice, as_row, break_even, check_name, measure

_COLUMNS = ("mode", "compile", "step", "speed", "peak memory", "graph breaks", "pays off after")


def compare_modes(factory: str, *, seconds: float, as_json: bool) -> None:
    """Measure all modes, one after the other; exit 1 if one of them fails."""
    check_name(factory)
    measured = []
    for mode in MODES:
        print(f"measuring {mode} …", file=sys.stderr, flush=True)
        measured.append(measure(factory, mode, seconds=seconds, memory=_memory()))
        if mode == EAGER and measured[0].step_seconds is None:
            break
    if as_json:
        rows = [as_row(measured[0], trial) for trial in measured]
        chosen = [{"from_step": steps, "mode": mode} for steps, mode in _advice(measured)]
        print(json.dumps(for_json({"modes": rows, "advice": chosen}), ensure_ascii=False))
    else:
        show(measured)
    sys.stdout.flush()
    raise typer.Exit(1 if any(trial.failed for trial in measured) else 0)


def _memory() -> int:
    import psutil

    return int(0.8 * psutil.virtual_memory().available)


def _advice(measured: list[Measured]) -> list[tuple[int, str]]:
    return advice(measured) if measured[0].step_seconds is not None else []


def show(measured: list[Measured]) -> None:
    """The modes as a table, what is to be said about them, and which one for which use."""
    console = output(at_most=WIDTH)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name == "mode" else "right", no_wrap=True)
    for trial in measured:
        table.add_row(*_cells(measured[0], trial))
    console.print(table)
    for line in [*_failures(measured), *_notes(measured)]:
        console.print(line, soft_wrap=not console.is_terminal)
    console.print()
    for use, mode in _uses(measured):
        console.print(Text.assemble((f"{use:<34} ", "dim"), (mode, "bold")))


def _cells(eager: Measured, measured: Measured) -> list[str]:
    speed = f"× {eager.step_seconds / measured.step_seconds:.2f}" if eager.step_seconds and measured.step_seconds else DASH
    steps = break_even(eager, measured)
    after = f"{number(steps)} steps" if steps is not None else DASH if measured.mode == EAGER or measured.failed else "never"
    compiling = duration(measured.compile_seconds)
    return [
        measured.mode,
        compiling,
        _short(measured.step_seconds),
        speed,
        size(measured.peak_bytes),
        number(measured.graph_breaks),
        after,
    ]


def _short(seconds: float | None) -> str:
    """A step's time, of which thousandths of a second matter."""
    if seconds is None:
        return DASH
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _failures(measured: list[Measured]) -> list[Text]:
    return [Text.assemble((f"{trial.mode}: ", "bold red"), trial.failed) for trial in measured if trial.failed]


def _notes(measured: list[Measured]) -> list[Text]:
    """What the numbers mean beyond themselves."""
    notes: list[str] = []
    compiled = [trial for trial in measured[1:] if not trial.failed]
    for trial in compiled:
        if trial.graph_breaks:
            notes.append(
                f"graph breaks cost speed; the first: {trial.break_reasons[0] if trial.break_reasons else 'no reason given'}"
            )
            break
    for trial in compiled:
        if trial.partial_batch_graphs:
            took = duration(trial.partial_batch_seconds)
            notes.append(f"a smaller last batch is compiled separately ({took}): use drop_last=True, or pad it")
    if measured[0].device == "cpu":
        notes.append("reduce-overhead uses CUDA graphs: on a CPU it is the same as the default mode")
    notes += dict.fromkeys(note for trial in compiled for note in trial.notes)
    return [Text(f"note: {note}", "dim") for note in notes]


def _uses(measured: list[Measured]) -> list[tuple[str, str]]:
    """Which mode for which use, by the measured numbers."""
    chosen = _advice(measured)
    rows: list[tuple[str, str]] = [("debugging", "eager: errors point at your own lines")]
    for place, (steps, mode) in enumerate(chosen):
        last = place + 1 == len(chosen)
        until = None if last else chosen[place + 1][0]
        if steps == 0:
            rows.append(("any number of steps" if last else f"up to {number(until)} steps", mode))
        else:
            rows.append((f"{number(steps)} steps and more" if last else f"{number(steps)} to {number(until)} steps", mode))
    return rows
