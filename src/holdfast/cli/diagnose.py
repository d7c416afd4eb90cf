"""`holdfast diagnose`: what is wrong with a run, since when, why, and what to change; ours or another tool's log."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import AsJson, Targets, all_of, run_names
from holdfast.errors import HoldfastError, LogUnreadable, NoSuchRun, StorageError

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.detectors.finding import Finding
    from holdfast.diagnosis.checkup import Checkup
    from holdfast.diagnosis.done import Done
    from holdfast.diagnosis.ranking import Ranked
    from holdfast.logs.series_choice import SeriesChoice
    from holdfast.signals.curves import Curves
    from holdfast.signals.run_folder import RunFolder

_NUM_SHOWN = 3  # shown without --all
_NAME = 44  # columns of a name in the overview; the end of it says most
_STYLES = {"healthy": "bold green", "watch": "bold yellow", "ill": "bold red", "too-short": "bold cyan"}
_VERDICTS = {
    "healthy": "healthy",
    "watch": "worth a look",
    "ill": "something is wrong",
    "too-short": "too short to tell",
}
_REPAIRED = ("something was wrong; Holdfast repaired it", "bold yellow")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("diagnose")(diagnose)


def diagnose(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET…",
            help="Runs (name, folder, PID, HOST:PORT), logs or folders.",
            show_default=False,
            autocompletion=run_names,
        ),
    ] = None,
    target: Targets = None,
    everything: Annotated[bool, typer.Option("--all", help="Show all findings and causes, not only the first three.")] = False,
    as_json: AsJson = False,
    page_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots to this file.", show_default=False)
    ] = None,
    series: Annotated[bool, typer.Option("--series", help="List the series and their roles, then exit.")] = False,
    train_loss: Annotated[
        str | None,
        typer.Option("--train-loss", metavar="NAME", help="Series to use as training loss.", show_default=False),
    ] = None,
    val_loss: Annotated[
        str | None, typer.Option("--val-loss", metavar="NAME", help="Series to use as validation loss.", show_default=False)
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", metavar="NAME", help="Series to use as metric.", show_default=False)
    ] = None,
    higher: Annotated[
        bool | None, typer.Option("--higher-is-better/--lower-is-better", help="Direction of that metric.", show_default=False)
    ] = None,
) -> None:
    """Report what is wrong with a run, since when, why, and how to fix it.

    Without a target: the newest run here. Exit code 1: something is wrong; 2: it could not be read.
    """
    from holdfast.logs.series_choice import SeriesChoice

    targets = all_of(runs, target)
    way = None if higher is None else "higher" if higher else "lower"
    chosen = SeriesChoice(train_loss=train_loss, val_loss=val_loss, metric=metric, better=way)
    if series:
        _list_series(targets or [""], chosen, as_json=as_json)
        return
    checkups, unread = _check_all(targets or [""], chosen)
    if page_file is not None:
        _write_page(page_file, checkups)
    if as_json:
        print(json.dumps({"runs": [checkup.as_row() for checkup in checkups]}, ensure_ascii=False))
    else:
        _show(checkups, everything=everything)
    for error in unread:
        print(f"not read: {error.problem}", file=sys.stderr)
    if any(checkup.verdict in ("watch", "ill") for checkup in checkups):
        raise typer.Exit(1)


def _check_all(targets: Sequence[str], chosen: SeriesChoice) -> tuple[list[Checkup], list[HoldfastError]]:
    """The check-ups, and what could not be read; an error if that is everything."""
    answers = [answer for name in targets for answer in _checked(name, chosen)]
    unread = [answer for answer in answers if isinstance(answer, HoldfastError)]
    if unread and len(unread) == len(answers):
        raise unread[0]
    return [answer for answer in answers if not isinstance(answer, HoldfastError)], unread


def _checked(target: str, chosen: SeriesChoice) -> Iterator[Checkup | HoldfastError]:
    """The check-ups of everything that a target names."""
    from holdfast.diagnosis.checkup import check_up
    from holdfast.diagnosis.of_run import check_up_run
    from holdfast.probe.address import is_server

    for read in read_target(target, chosen):
        if isinstance(read, HoldfastError):
            yield read
        else:
            curves, run = read
            there = run.name if run is not None and is_server(target) else None
            yield check_up(curves) if run is None else check_up_run(run, curves, target=there)


def read_target(
    target: str, chosen: SeriesChoice, *, anything: bool = False, copies: Path | None = None
) -> Iterator[tuple[Curves, RunFolder | None] | HoldfastError]:
    """The curves of everything that a target names, and the run if it is one of Holdfast's; what cannot be read, as an error.

    A run of a server is copied to `copies`; without such a folder the copy is there until the next one is asked for.
    """
    from holdfast.logs.folders import kind_of
    from holdfast.logs.search import find_logs

    path = Path(target).expanduser()
    if not target or not path.is_dir() or kind_of(path) == "holdfast":
        yield from _read_one(path if target else None, target, chosen, anything=anything, copies=copies)
        return
    several = False
    for log in find_logs(path):
        several = True
        try:
            yield from _read_one(log, str(log), chosen, anything=anything)
        except HoldfastError as error:
            yield error
    if not several and "/" not in target and (Path("runs") / target / "run.json").is_file():
        yield from _read_one(Path("runs") / target, target, chosen, anything=anything)
    elif not several:
        raise LogUnreadable(f"{path} holds no run and no log.", fix="name a log, or a folder with CSV, JSON or text logs in it")


def _read_one(
    path: Path | None, name: str, chosen: SeriesChoice, *, anything: bool, copies: Path | None = None
) -> Iterator[tuple[Curves, RunFolder | None]]:
    """The runs in a file or a run's folder, or of a server; any other name is a run of Holdfast."""
    from holdfast.logs.folders import kind_of
    from holdfast.logs.holdfast_run import read_run
    from holdfast.logs.open import open_log
    from holdfast.probe.address import is_server

    if path is not None and (path.is_file() or (path.is_dir() and kind_of(path) != "holdfast")):
        for curves in open_log(path, name=name, anything=anything or bool(chosen)):
            yield chosen.of(curves), None
    elif is_server(name):
        with nullcontext(copies) if copies else TemporaryDirectory(prefix="holdfast-") as folder:
            for run in copies_of(name, Path(folder)):
                yield chosen.of(read_run(run)), run
    else:
        run = _run_named(name)
        yield chosen.of(read_run(run)), run


def copies_of(server: str, folder: Path) -> Iterator[RunFolder]:
    """The runs of a server, brought here."""
    from holdfast.probe.far_copy import copies

    yield from copies(server, folder)


def _run_named(name: str) -> RunFolder:
    from holdfast.probe.target import resolve

    try:
        return resolve(name or None)
    except NoSuchRun as error:
        if not name or name.isdigit():
            raise
        if "/" in name or Path(name).suffix:
            raise LogUnreadable(f"there is no file and no folder {name}.", fix="check the path") from None
        raise NoSuchRun(error.problem, fix=f"{error.fix}; name a log of another tool by its path") from None


def _list_series(targets: Sequence[str], chosen: SeriesChoice, *, as_json: bool) -> None:
    from holdfast.cli.series import list_series

    read = [answer for target in targets for answer in read_target(target, chosen, anything=True)]
    unread = [answer for answer in read if isinstance(answer, HoldfastError)]
    runs = [answer[0] for answer in read if not isinstance(answer, HoldfastError)]
    if not runs and unread:
        raise unread[0]
    list_series(runs, as_json=as_json)
    for error in unread:
        print(f"not read: {error.problem}", file=sys.stderr)


def _write_page(path: Path, checkups: Sequence[Checkup]) -> None:
    from holdfast.diagnosis.page import page

    try:
        path.write_text(page(checkups), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}.", fix="name another file") from error
    print(f"written: {path}", file=sys.stderr)


def _show(checkups: Sequence[Checkup], *, everything: bool) -> None:
    from holdfast.cli.output import output

    console = output()
    if len(checkups) > 1 and not everything:
        _overview(console, checkups)
        return
    for checkup in checkups:
        _tell(console, checkup, everything=everything)


def _overview(console: Console, checkups: Sequence[Checkup]) -> None:
    """Many runs: a line for each."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for checkup in checkups:
        codes = ", ".join(finding.code for finding in checkup.findings) or "–"
        name = checkup.curves.name
        verdict = ("repaired", "bold yellow") if checkup.repaired else (_VERDICTS[checkup.verdict], _STYLES[checkup.verdict])
        table.add_row(name if len(name) <= _NAME else f"…{name[1 - _NAME :]}", Text(*verdict), codes)
    console.print(table)


def _tell(console: Console, checkup: Checkup, *, everything: bool) -> None:
    """The verdict, then what happened, each thing with its evidence, its likely cause and what to do."""
    from rich.text import Text

    from holdfast.supervisor.post_mortem import is_complete

    curves = checkup.curves
    length = f"{curves.points} points" if curves.num_steps < curves.points else f"{curves.num_steps:,} steps"
    failed = _failed_early(checkup)
    verdict = _REPAIRED if checkup.repaired else (failed or _VERDICTS[checkup.verdict], _STYLES[checkup.verdict])
    head = Text.assemble((curves.name, "bold"), ": ", verdict)
    console.print(head if failed else head.append(f"   {curves.source} · {length}", "dim"))
    if failed and is_complete(checkup.findings[0]):
        if fix := checkup.findings[0].evidence.get("fix"):
            console.print(f"  fix: {fix}", markup=False, highlight=False, soft_wrap=True)
        return
    shown = checkup.episodes if everything else checkup.episodes[:_NUM_SHOWN]
    for episode in shown:
        console.print()
        _tell_findings(console, episode.findings if everything else episode.findings[:_NUM_SHOWN], curves)
        _tell_done(console, episode.done)
        for place, ranked in enumerate(episode.diagnoses if everything else episode.diagnoses[:2]):
            _tell_cause(console, ranked, first=place == 0, everything=everything)
    left = len(checkup.episodes) - len(shown)
    if left:
        console.print(f"\n  and {left} more: --all", style="dim")


def _failed_early(checkup: Checkup) -> str | None:
    """Why a run ended before its first step, if that is what happened."""
    from holdfast.supervisor.post_mortem import failed_early

    worst = next(iter(checkup.findings), None)
    never = worst is not None and worst.severity == "critical" and worst.evidence.get("steps") == 0 and "ended" in worst.evidence
    return failed_early(worst) if worst is not None and never else None


def _tell_findings(console: Console, findings: Sequence[Finding], curves: Curves) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from holdfast.diagnosis.curve_sentences import sentence
    from holdfast.probe.words import FINDINGS

    for finding in findings:
        style = {"critical": "bold red", "warning": "bold yellow"}.get(finding.severity, "")
        title = FINDINGS.get(finding.code, finding.code)
        code = "" if title.replace(" ", "-") == finding.code else f" [{finding.code}]"
        console.print(Padding(Text.assemble((title, style), (code, "dim")), (0, 0, 0, 2), expand=False))
        never = finding.evidence.get("steps") == 0 and "ended" in finding.evidence
        text = f"{finding.evidence['ended']} before the first step" if never else sentence(finding, curves)
        console.print(Padding(Text(text), (0, 0, 0, 4), expand=False))


def _tell_done(console: Console, done: Sequence[Done]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from holdfast.diagnosis.event_words import done_words

    for action in done:
        times = f", {action.times:,} times" if action.times > 1 else ""
        place = f"at step {action.event.step:,}" if action.times == 1 else f"from step {action.event.step:,} on"
        text = Text.assemble(("done about it: ", "green"), f"{done_words(action.event)}{times}, {place}")
        console.print(Padding(text, (0, 0, 0, 2), expand=False))


def _tell_cause(console: Console, ranked: Ranked, *, first: bool, everything: bool) -> None:
    from rich.padding import Padding
    from rich.text import Text

    head = Text.assemble(f"{ranked.stated} cause: " if first else f"or, {ranked.stated}: ", (ranked.cause.title, "bold"))
    because = "; ".join((ranked.cause.because.rstrip("."), *ranked.because))
    console.print(Padding(head.append(f": {because}"), (0, 0, 0, 2), expand=False))
    for fix in ranked.fixes if everything else ranked.fixes[:2]:
        setting = f"  ({fix.change})" if fix.change else ""
        console.print(Padding(Text(f"fix: {fix.text}{setting}"), (0, 0, 0, 4), expand=False))
        if command := ranked.command_of(fix):
            console.print(Padding(Text(f"$ {command}", "cyan"), (0, 0, 0, 9), expand=False))
