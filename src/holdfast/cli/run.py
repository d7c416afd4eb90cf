"""`holdfast run`: start a command with Holdfast inside and a supervisor outside."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import UsageError
from holdfast.inside.policy import POLICIES

_POLICY_HELP = (
    "What Holdfast may do: observe (see and say), guard (leave out bad updates), heal (guard, and repair), "
    "or a file with policies of your own."
)


def register(app: typer.Typer) -> None:
    """Add the verb. Options end at the first word of the command: what follows is the command's own."""
    app.command("run", context_settings={"allow_interspersed_args": False})(run)


def run(
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND...", show_default=False)] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; the script's name and the time without it.")] = None,
    folder: Annotated[Path, typer.Option(help="Folder that holds the runs.")] = Path("runs"),
    policy: Annotated[str, typer.Option(help=_POLICY_HELP)] = "observe",
    rule: Annotated[list[str] | None, typer.Option(help="Another policy for one finding: loss-spike=observe.")] = None,
    patience: Annotated[
        int | None, typer.Option(min=1, help="Stop when a validation metric got no better for so many evaluations (heal).")
    ] = None,
    budget: Annotated[str, typer.Option(help="Share of a step that watching may cost.")] = "1%",
    hang_after: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="Silence that is no hang, 10 by default; or `off`.", show_default=False),
    ] = None,
    restarts: Annotated[int, typer.Option(min=0, help="How often a command that fails or hangs is started again (heal).")] = 3,
    resume_args: Annotated[
        str | None, typer.Option(metavar="WORDS", help='How the script resumes: "--resume {checkpoint}".', show_default=False)
    ] = None,
    restart_args: Annotated[
        str | None, typer.Option(metavar="WORDS", help='More words for a restart: "--workers {workers}".', show_default=False)
    ] = None,
) -> None:
    """Start a command with Holdfast inside and a supervisor outside.

    The command runs as it would alone: its input, output, signals and exit code are passed through.
    """
    from holdfast.supervisor.command import find_command
    from holdfast.supervisor.launch import Settings
    from holdfast.supervisor.watching import run_command

    rules = dict(read_rule(text) for text in rule or [])
    if patience is not None and policy in ("observe", "guard"):
        raise UsageError(f"the policy {policy} never stops a training.", fix="--policy heal --patience 20")
    chosen = read_policy(policy)
    settings = Settings(
        name=name,
        folder=folder,
        policy=chosen,
        rules=rules,
        patience=patience,
        budget=parse_budget(budget),
        hang_after=read_hang_after(hang_after),
        restarts=restarts,
        resume_args=read_template(resume_args),
        restart_args=read_template(restart_args),
    )
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


def read_hang_after(text: str | None) -> str | None:
    """Seconds as a number, or `off`."""
    if text is None or text == "off":
        return text
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise UsageError(f"{text!r} is no time.", fix="name seconds, such as --hang-after 60, or --hang-after off")
    return f"{seconds:g}"


def read_template(text: str | None) -> str | None:
    """Words with names in braces; a name that is not known is an error."""
    if text is not None:
        from holdfast.supervisor.resume import names_in

        names_in(text)
    return text


def read_policy(name: str) -> str:
    """One of the three, or the absolute path of a file with policies of the user's own."""
    if name in POLICIES:
        return name
    if name.endswith(".py"):
        if Path(name).is_file():
            return str(Path(name).absolute())
        raise UsageError(f"there is no file {name}.", fix="name a Python file that defines `policies = [...]`")
    close = difflib.get_close_matches(name, POLICIES, n=1)
    raise UsageError(f"there is no policy {name!r}.", fix=f"--policy {close[0] if close else 'observe, guard or heal'}")


def read_rule(text: str) -> tuple[str, str]:
    """`loss-spike=observe`: another policy for one finding."""
    code, _, name = text.partition("=")
    if name not in POLICIES or not code:
        raise UsageError(f"{text!r} is not a rule.", fix="name a finding and a policy, such as --rule loss-spike=observe")
    return code, name
