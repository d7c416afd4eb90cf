"""`holdfast run`: start a command with Holdfast inside and a supervisor outside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import UsageError

_POLICIES = ("observe", "guard", "heal")


def register(app: typer.Typer) -> None:
    """Add the verb. Options end at the first word of the command: what follows is the command's own."""
    app.command("run", context_settings={"allow_interspersed_args": False})(run)


def run(
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND...", show_default=False)] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; the script's name and the time without it.")] = None,
    folder: Annotated[Path, typer.Option(help="Folder that holds the runs.")] = Path("runs"),
    policy: Annotated[str, typer.Option(help="What Holdfast may do: observe (see and say).")] = "observe",
    budget: Annotated[str, typer.Option(help="Share of a step that watching may cost.")] = "1%",
) -> None:
    """Start a command with Holdfast inside and a supervisor outside.

    The command runs as it would alone: its input, output, signals and exit code are passed through.
    """
    from holdfast.supervisor.command import find_command
    from holdfast.supervisor.launch import Settings
    from holdfast.supervisor.watching import run_command

    settings = Settings(name=name, folder=folder, policy=_policy(policy), budget=parse_budget(budget))
    raise typer.Exit(run_command(find_command(command or []), settings))


def parse_budget(text: str) -> float:
    """`1%` or `0.01`, as a share of the step."""
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UsageError(f"{text!r} is not a budget.", fix="name a share of the step, such as --budget 1%")
    return round(share, 9)


def _policy(name: str) -> str:
    if name not in _POLICIES:
        raise UsageError(f"there is no policy {name!r}.", fix="--policy observe")
    if name != "observe":
        raise UsageError(f"the policy {name} is not available in this version.", fix="--policy observe, or leave it out")
    return name
