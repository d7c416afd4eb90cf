"""`holdfast drill`: inject faults into a training on purpose, and report what is detected and survived."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import AsJson
from holdfast.errors import HoldfastError, UsageError

if TYPE_CHECKING:
    from holdfast.drills.suite import RemainingRuns, Result, SuiteResult
    from holdfast.drills.trial import Training

_POLICIES = {"heal": ("heal",), "observe": ("observe",), "guard": ("guard",), "both": ("observe", "heal")}
_INTERRUPTED = 130


def register(app: typer.Typer) -> None:
    """Add the verb. Options end at the first word of the command: what follows is the command's own."""
    app.command("drill", context_settings={"allow_interspersed_args": False})(drill)


def drill(
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND...", show_default=False)] = None,
    faults: Annotated[
        str, typer.Option(metavar="CODES", help="Codes or numbers from --list, separated by commas; or all.")
    ] = "all",
    fault_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE.py", help="Your own faults; without --faults only these.", show_default=False),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="STEP", help="When: step=200 for all, nan-batch=200 for one. (default: random)", show_default=False),
    ] = None,
    policy: Annotated[str, typer.Option(help="What Holdfast may do: heal, guard, observe, or both (observe and heal).")] = "heal",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds for each fault; each seed draws a different step.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The first seed. The same seed gives the same steps.")] = 0,
    controls: Annotated[int, typer.Option(min=1, help="Minimum number of runs without a fault.")] = 3,
    sequence: Annotated[bool, typer.Option("--sequence", help="All faults in one run.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Number of runs in parallel.")] = 1,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="Metric that measures the result.", show_default=False)
    ] = None,
    resume_args: Annotated[
        str | None, typer.Option(metavar="ARGS", help='How the script resumes: "--resume {checkpoint}".', show_default=False)
    ] = None,
    hang_after: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS", help="Seconds without progress before reporting a hang (default 10).", show_default=False
        ),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder for runs.")] = Path("runs/drills"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep all runs, not only failed ones.")] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List all faults, then exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Inject faults into a training, and report what Holdfast detects and survives.

    The training first runs without a fault, then once for each fault. `{folder}` in the command becomes a separate folder for
    each run. Exit code 1: a fault was missed or not survived, or a healthy run raised a finding; 2: the drill could not run.
    """
    from holdfast.drills.selection import load_faults, read_at, read_codes

    own = load_faults(fault_file)
    if list_them:
        from holdfast.cli.drill_list import show_list

        show_list(own, as_json=as_json)
        return
    training = _training(command or [], metric=metric, resume_args=resume_args, hang_after=hang_after)
    if policy not in _POLICIES:
        raise UsageError(f"there is no policy {policy!r} to drill with.", fix="--policy heal, guard, observe or both")
    codes = list(own) if own and faults == "all" else read_codes(faults, list(own))
    result = _run(
        training, codes, at=read_at(at or [], codes), policies=_POLICIES[policy], seeds=range(seed, seed + seeds),
        controls=controls, sequence=sequence, jobs=jobs, folder=folder / time.strftime("%m%d-%H%M%S"), keep=keep, sources=own,
    )  # fmt: skip
    _tell(result, as_json=as_json)


def _training(command: list[str], *, metric: str | None, resume_args: str | None, hang_after: str | None) -> Training:
    """The command as a user would give it to `holdfast run`."""
    from holdfast.cli.run import read_hang_after, read_template
    from holdfast.drills.trial import Training
    from holdfast.supervisor.command import find_command

    if not command:
        raise UsageError("no training command is given.", fix="holdfast drill -- python train.py")
    script = next((Path(word).stem for word in command if word.endswith(".py")), Path(command[0]).name)
    find_command(command)
    return Training(
        command=tuple(command),
        name=script,
        metric=metric,
        resume_args=read_template(resume_args),
        hang_after=read_hang_after(hang_after),
        directory=Path.cwd(),
    )


def _run(training: Training, codes: list[str], *, folder: Path, **how: object) -> SuiteResult:
    """Run it; an error leaves no folder behind."""
    from holdfast.drills.suite import run_suite

    print(f"drilling: {shlex.join(training.command)}\n  first without a fault …", file=sys.stderr, flush=True)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: no training stays behind
    try:
        return run_suite([training], codes, folder=folder, on_result=_say, on_plan=_say_ahead, **how)  # type: ignore[arg-type]
    except HoldfastError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        _remove_empty(folder)


def _say(result: Result) -> None:
    from holdfast.drills.report import line

    print(f"  {line(result)}", file=sys.stderr, flush=True)


def _say_ahead(ahead: RemainingRuns) -> None:
    from holdfast.drills.report import seconds_in_words

    if ahead.shared:
        files = ", ".join(map(_shown, ahead.shared[:3])) + (", …" if len(ahead.shared) > 3 else "")
        print(
            f"  note: every run saves the same files ({files}); a run that resumes from another's files proves nothing.\n"
            "        `{folder}` in the command is a folder of each run's own: python train.py --output {folder}",
            file=sys.stderr,
        )
    runs = f"{ahead.runs} run{'s' if ahead.runs != 1 else ''} with faults"
    print(f"  now {runs}, about {seconds_in_words(ahead.seconds)} …", file=sys.stderr, flush=True)


def _remove_empty(place: Path) -> None:
    for folder in (place, place.parent):
        with contextlib.suppress(OSError):  # something was kept in it
            folder.rmdir()


def _tell(result: SuiteResult, *, as_json: bool) -> None:
    """The table, the totals, where to look; and the exit code."""
    from holdfast.drills.report import totals
    from holdfast.drills.suite import as_rows

    counted = totals(result)
    if as_json:
        print(json.dumps({**as_rows(result), "totals": counted.as_row()}, ensure_ascii=False))
    else:
        _show(result)
    _say_where(result)
    if result.interrupted:
        raise typer.Exit(_INTERRUPTED)
    if not counted.good:
        raise typer.Exit(1)


def _show(result: SuiteResult) -> None:
    from holdfast.cli.checkpoints.layout import page
    from holdfast.drills.report import table, totals

    out = page()
    if result.scores:
        out.print()
        out.print(table(result.scores))
        out.print("metric: with the fault, and without; lost: steps, and time", style="dim")
    out.print()
    for total in totals(result).in_words():
        out.print(total)
    if result.interrupted:
        out.print("interrupted: what was not run is missing above", style="yellow")


def _say_where(result: SuiteResult) -> None:
    """The runs that are worth a look."""
    bad = [(score.fault, score.run) for score in result.scores if score.worth_a_look and score.run]
    bad += [("no fault", control.run) for control in result.controls if control.false_alarms and control.run]
    for name, run in dict.fromkeys(bad):
        print(f"look at it ({name}): holdfast diagnose {_shown(run)}", file=sys.stderr)


def _shown(path: str) -> str:
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd().resolve()))
    return path
