"""`holdfast doctor`: is this machine ready to train? What is wrong with it, by what evidence, and what would fix it."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import AsJson
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.environment.check import Check
    from holdfast.environment.examine import Answer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("doctor")(doctor)


def doctor(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="A training command, after `--`.", show_default=False),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Print the commands that fix it; runs nothing.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Plain text for a bug report; keys and names masked.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this check. Repeatable.", show_default=False)
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Also the slow checks: torch.compile, all-reduce.")] = False,
    compile_of: Annotated[
        str | None,
        typer.Option(
            "--compile",
            metavar="MODULE:FACTORY",
            help="Compare the modes of torch.compile on your model: the factory returns (model, inputs) or a step function.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="With --compile: time limit of each mode.")] = 600.0,
    folder: Annotated[Path, typer.Option(help="Where runs will be written.")] = Path(),
    workers: Annotated[int | None, typer.Option(min=0, help="Planned number of loader workers.", show_default=False)] = None,
    batch_mb: Annotated[float | None, typer.Option(min=0, help="Planned size of a batch in MB.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine: driver, torch, GPUs, memory, disk, limits, trackers; with --full also torch.compile.

    With a command (`holdfast doctor -- python train.py`) it also reports how the script resumes after a crash; the command is not
    run.

    Every check has a time limit; checks that could crash or hang run in a separate process. Exit code 1: a problem was found.
    """
    if compile_of is not None:
        from holdfast.cli.doctor_compile import compare_modes

        compare_modes(compile_of, seconds=seconds, as_json=as_json)
        return
    from holdfast.cli import doctor_show as show
    from holdfast.environment.check import PROBLEM
    from holdfast.environment.machine import Machine, Plans
    from holdfast.environment.report import count

    batch = int(batch_mb * (1 << 20)) if batch_mb is not None else None
    machine, checks = Machine(Plans(folder=folder, workers=workers, batch=batch)), _chosen(only, command, full=full)
    if as_json or fix or report:
        answers = show.gathered(machine, checks)
        _hand_over(answers, as_json=as_json, fix=fix)
    else:
        answers = show.show_answers(machine, checks, more_checks=not (full or only))
    sys.stdout.flush()
    raise typer.Exit(1 if count(answers, PROBLEM) else 0)


def _hand_over(answers: list[Answer], *, as_json: bool, fix: bool) -> None:
    from holdfast.cli import doctor_show as show
    from holdfast.cli.show import for_json
    from holdfast.environment.check import PROBLEM, WARNING
    from holdfast.environment.report import as_rows, count, text_report

    if as_json:
        counts = {"problems": count(answers, PROBLEM), "warnings": count(answers, WARNING)}
        print(json.dumps({**counts, "checks": for_json(as_rows(answers))}, ensure_ascii=False))
    elif fix:
        show.commands(answers)
    else:
        print(text_report(answers), end="")


def _chosen(only: list[str] | None, command: list[str] | None, *, full: bool) -> list[Check]:
    from holdfast.cli import project_settings
    from holdfast.cli.doctor_resume import resuming
    from holdfast.cli.run import default_settings, option_names
    from holdfast.environment.checks import CHECKS
    from holdfast.supervisor.command import find_command

    if command:
        find_command(command)
    settings = project_settings.check(option_names(), default_settings())
    shown = project_settings.find_file(Path.cwd()) or "settings" in (only or ())  # without a file there is little to tell
    checks = [*CHECKS, *([settings] if shown else []), *([resuming(command)] if command else [])]
    names = [check.name for check in checks]
    for name in only or ():
        if name == "resuming" and not command:
            raise UsageError("The check resuming needs a command.", fix="holdfast doctor --only resuming -- python train.py")
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
            fix = f"holdfast doctor --only {near[0]}" if near else f"one of: {', '.join(names)}"
            raise UsageError(f"There is no check {name!r}.", fix=fix)
    return [check for check in checks if (check.name in only if only else full or not check.long)]
