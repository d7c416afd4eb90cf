"""What validation says: what the data is, and what is wrong with it."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any

from holdfast.data.problem import Problem

# The report as one HTML file that needs nothing else.

_LISTED = 200
_STYLE = """
:root { color-scheme: light dark; --ink: #1a202c; --soft: #718096; --line: #e2e8f0; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e8f0; --soft: #a0aec0; --line: #2d3748; --paper: #1a202c; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2rem auto; padding: 0 1rem; color: var(--ink);
  background: var(--paper); }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .2rem; } .soft { color: var(--soft); }
.badge { font-weight: 600; padding: .1rem .6rem; border-radius: 1rem; color: #fff; font-size: .8rem; }
.critical { background: #c53030; } .warning { background: #b7791f; } .info { background: #2b6cb0; } .good { background: #2f855a; }
table { border-collapse: collapse; margin: .6rem 0; } td, th { text-align: left; padding: .15rem .9rem .15rem 0;
  border-bottom: 1px solid var(--line); } td.number { text-align: right; font-variant-numeric: tabular-nums; }
details { margin: .3rem 0; } li, code { font: 13px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; } p { margin: .2rem 0; }
"""


def page(report: Report) -> str:
    """The whole file."""
    title = f"{report.path}: {report.format}"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{_text(title)}</title>'
    body = (
        _summary(report)
        + "".join(map(_problem, report.problems))
        + "".join(f"<p class=soft>{_text(note)}</p>" for note in report.notes)
    )
    whole = f"<head>{head}<style>{_STYLE}</style></head><body><h1>Holdfast: {_text(title)}</h1>{body}</body>"
    return f"<!doctype html><html lang=en>{whole}</html>\n"


def _summary(report: Report) -> str:
    found = "".join(
        f' <span class="badge {severity}">{report.count(severity)} {severity}</span>'
        for severity in ("critical", "warning", "info")
        if report.count(severity)
    )
    verdict = found or ' <span class="badge good">nothing wrong was found</span>'
    tables = _counts("split", report.splits, report.unit) + (_counts("class", report.classes, "count") if report.classes else "")
    return f"<p>{report.samples:,} {_text(report.unit)}{verdict}</p>{tables}"


def _counts(word: str, counts: dict[str, int], unit: str) -> str:
    rows = "".join(
        f"<tr><td>{_text(name)}</td><td class=number>{count:,}</td></tr>" for name, count in list(counts.items())[:_LISTED]
    )
    return f"<table><tr><th>{_text(word)}</th><th>{_text(unit)}</th></tr>{rows}</table>"


def _problem(problem: Problem) -> str:
    files = "".join(f"<li>{_text(file)}</li>" for file in problem.files[:_LISTED])
    more = f"<li>and {len(problem.files) - _LISTED:,} more</li>" if len(problem.files) > _LISTED else ""
    listed = f"<details><summary>{len(problem.files):,} files</summary><ul>{files}{more}</ul></details>" if problem.files else ""
    return (
        f'<h2><span class="badge {problem.severity}">{problem.severity}</span> {_text(problem.code)}</h2>'
        f"<p>{_text(problem.words)}</p><p class=soft>e.g. <code>{_text(problem.example)}</code></p>"
        f"<p>fix: {_text(problem.fix)}</p>{listed}"
    )


def _text(words: str) -> str:
    return html.escape(words.encode("utf-8", errors="replace").decode(), quote=True)


@dataclass(slots=True)
class Report:
    """The answer. `splits` and `classes` are counts; `unit` is what they count besides samples ("boxes")."""

    path: str
    format: str
    unit: str = "images"
    splits: dict[str, int] = field(default_factory=dict)
    classes: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    remembered: bool = False  # nothing changed since the last time, whose answer this is

    @property
    def samples(self) -> int:
        """How many there are in all splits."""
        return sum(self.splits.values())

    def count(self, severity: str) -> int:
        """How many problems are this bad."""
        return sum(problem.severity == severity for problem in self.problems)

    def as_row(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "path": self.path,
            "format": self.format,
            "unit": self.unit,
            "samples": self.samples,
            "splits": self.splits,
            "classes": self.classes,
            "problems": [problem.as_row() for problem in self.problems],
            "notes": self.notes,
            "seconds": round(self.seconds, 3),
            "remembered": self.remembered,
        }


def report_from(row: dict[str, Any]) -> Report:
    """The report that was made into a row."""
    fields = {key: value for key, value in row.items() if key not in ("samples", "problems", "seconds")}
    return Report(**fields, problems=[Problem(**problem) for problem in row["problems"]])
