"""`holdfast backtrace`: where every thread of every process of a run is, and what that means."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import AllRuns, AsJson, RunNames, Targets, all_of

if TYPE_CHECKING:
    from holdfast.probe.stacks.report import Report


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("backtrace")(backtrace)


def backtrace(
    runs: RunNames = None,
    target: Targets = None,
    everything: AllRuns = False,
    locals_: Annotated[bool, typer.Option("--locals", help="Also show local variables of your own functions.")] = False,
    native: Annotated[bool, typer.Option("--native/--no-native", help="Include C and C++ frames; slower.")] = True,
    all_threads: Annotated[bool, typer.Option("--all-threads", help="Show all threads and all frames.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show where a run is stuck: the stacks of all threads and processes, and what they mean.

    Works while the process hangs, holds the GIL or is stopped. TARGET may also be the id of any Python process. Several targets
    are one job. Exit code 1: the run is stuck.
    """
    targets = all_of(runs, target)
    if everything or len(targets) > 1 or any(":" in name for name in targets):
        _of_several(targets, everything, native=native, locals_=locals_, all_threads=all_threads, as_json=as_json)
        return
    report = report_on(targets[0] if targets else None, native=native, locals_=locals_)
    if as_json:
        print(json.dumps(as_object(report), ensure_ascii=False))
    else:
        _print(report, all_threads=all_threads, locals_=locals_)
    for note in report.notes:
        print(note, file=sys.stderr)
    if report.verdict.is_wrong and not report.over:
        raise typer.Exit(1)


def _of_several(targets: list[str], everything: bool, *, native: bool, locals_: bool, all_threads: bool, as_json: bool) -> None:
    from holdfast.cli.cluster_words import end
    from holdfast.probe.cluster import find
    from holdfast.probe.stacks.cluster_report import reports_on

    cluster = find(targets, everything=everything)
    reports = reports_on(cluster, native=native, locals_=locals_)
    if as_json:
        print(json.dumps([as_object(report) for report in reports], ensure_ascii=False))
    for number, report in enumerate(() if as_json else reports):
        print("\n" * bool(number), end="")
        _print(report, all_threads=all_threads, locals_=locals_)
    end(cluster, int(any(report.verdict.is_wrong for report in reports)))


def report_on(target: str | None, *, native: bool, locals_: bool) -> Report:
    """Take the stacks of what the target names: a run, or a process that belongs to none."""
    from holdfast.errors import NoSuchRun
    from holdfast.probe.stacks.report import report_on_process, report_on_run
    from holdfast.probe.target import resolve

    try:
        run = resolve(target)
    except NoSuchRun:
        if target is None or not target.isdigit():
            raise
        report = report_on_process(int(target), native=native, locals_=locals_)
        report.notes.append(f"process {target} belongs to no run: showing it and its children; nothing is saved")
        return report
    return report_on_run(run, native=native, locals_=locals_, meanwhile=_load_screen)


def _load_screen() -> None:
    import rich.console  # noqa: F401

    import holdfast.cli.stack_screen  # noqa: F401


def as_object(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    from holdfast.cli.show import for_json

    row = {
        "run": report.name,
        "time": report.when,
        "over": report.over,
        "verdict": asdict(report.verdict),
        "processes": [asdict(stack) for stack in report.stacks],
        "since": report.before,
        "changes": [asdict(change) for change in report.changes],
        "kept": report.kept,
    }
    answer: dict[str, Any] = for_json(row)
    return answer


def _print(report: Report, *, all_threads: bool, locals_: bool) -> None:

    from holdfast.cli.output import output
    from holdfast.cli.stack_screen import stack_screen

    console = output()
    console.print(stack_screen(report, all_threads=all_threads, locals_=locals_))
