"""Options that mean the same on every verb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from holdfast.errors import HoldfastError, UsageError


def run_names(incomplete: str) -> list[str]:
    """The runs that a shell completes: those here, and the live ones of this machine."""
    from holdfast.probe.target import registered_runs, runs_here

    return [name for name in dict.fromkeys(run.name for run in (*runs_here(), *registered_runs())) if name.startswith(incomplete)]


Target = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--target",
        metavar="TARGET",
        help="The run: name, folder or PID. (default: the newest run here)",
        show_default=False,
        autocompletion=run_names,
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "-t",
        "--target",
        metavar="TARGET",
        help="A run: name, folder, PID, or HOST:PORT of a server. Repeatable. (default: the newest run here)",
        show_default=False,
        autocompletion=run_names,
    ),
]
NamedTargets = Annotated[
    list[str] | None,
    typer.Option(
        "-t",
        "--target",
        metavar="TARGET",
        help="A run: name, folder, PID, or HOST:PORT of a server. Repeatable.",
        show_default=False,
        autocompletion=run_names,
    ),
]
_run = typer.Argument(metavar="RUN", help="Same as -t RUN.", show_default=False, autocompletion=run_names)
RunName = Annotated[str | None, _run]
RunNames = Annotated[list[str] | None, _run]
AllRuns = Annotated[bool, typer.Option("--all", help="All live runs of this machine.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Otlp = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Push the metrics to this OpenTelemetry collector: http://HOST:4318.", show_default=False),
]


def one_of(run: str | None, target: str | None) -> str | None:
    """The run that was named, by its place or with -t."""
    if run and target and run != target:
        raise UsageError(f"two runs are named, {run} and {target}, and this verb takes one.", fix=f"name one: -t {run}")
    return at_leader(run or target)


def all_of(runs: Sequence[str] | None, target: Sequence[str] | None) -> list[str]:
    """The runs that were named, by their place or with -t."""
    named = list(dict.fromkeys((*(runs or ()), *(target or ()))))
    return [at_leader(name) or name for name in named]


def at_leader(target: str | None) -> str | None:
    """A run of several nodes that share no folder is asked at its first node, which has all of it."""
    from holdfast.probe.target import resolve

    try:
        run = resolve(target) if target and ":" not in target else None
    except HoldfastError:  # the verb itself says so
        return target
    led_by = run.info().get("led_by") if run is not None else None
    return f"{led_by}/{run.name}" if run is not None and led_by else target
