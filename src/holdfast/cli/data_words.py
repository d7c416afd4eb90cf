"""How the answer of `holdfast validate` looks in a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.data.problem import Problem
    from holdfast.data.validate import Report

_STYLES = {"critical": "bold red", "warning": "yellow", "info": "cyan"}
_INDENT = " " * 10
_CLASSES = 12


def show(report: Report, *, every: bool = False) -> None:
    """What the data is, what is wrong with it, and in the last line on stderr how that adds up."""
    from holdfast.cli.checkpoints.layout import page

    console = page()
    _print(console, _headline(report), indent="", style="bold")
    if report.classes:
        some = list(report.classes.items())[:_CLASSES]
        more = f", and {len(report.classes) - len(some):,} more" if len(report.classes) > len(some) else ""
        _print(console, "classes: " + ", ".join(f"{name} {count:,}" for name, count in some) + more, indent="", style="dim")
    for problem in report.problems:
        _problem(console, problem, every=every)
    for note in report.notes:
        _print(console, f"note: {note}", indent="", style="dim")
    sys.stdout.flush()
    print(_totals(report), file=sys.stderr)


def _headline(report: Report) -> str:
    splits = " · ".join(f"{split} {count:,}" for split, count in report.splits.items())
    return f"{report.path}: {report.format}, {report.samples:,} {report.unit}" + (
        f" ({splits})" if len(report.splits) > 1 else ""
    )


def _problem(console: Console, problem: Problem, *, every: bool) -> None:
    from rich.text import Text

    line = Text(no_wrap=True).append(problem.severity.ljust(10), _STYLES[problem.severity])
    console.print(line.append(problem.code, "bold"), soft_wrap=True)
    _print(console, problem.words)
    if every:
        cases = problem.every_case()
        for case in cases:
            _print(console, case, style="dim")
        if problem.count > len(cases) > 1:
            _print(console, f"and {problem.count - len(cases):,} more", style="dim")
    elif problem.example:
        _print(console, f"e.g. {problem.example}", style="dim")
    _print(console, f"fix: {problem.fix}", style="cyan")


def _print(console: Console, text: str, *, indent: str = _INDENT, style: str = "") -> None:
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import folded

    for line in folded(text, console.width, indent, hang="     " if text.startswith(("fix: ", "e.g. ")) else ""):
        console.print(Text(line, style), soft_wrap=True)


def _totals(report: Report) -> str:
    from holdfast.cli.show import duration

    labels = {"critical": "critical", "warning": "warnings", "info": "notes"}
    counts = [
        f"{count} {word[:-1] if count == 1 and word[-1] == 's' else word}"
        for severity, word in labels.items()
        if (count := report.count(severity))
    ]
    summary = ", ".join(counts) if counts else "no problems found"
    how = "nothing changed since the last run" if report.remembered else f"in {duration(report.seconds)}"
    return f"{summary}; {report.samples:,} {report.unit}, {how}"
