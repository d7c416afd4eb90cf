"""What is wrong with data: a fault is one place, a problem is all faults of one kind, a report is all problems of a set."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

Severity = Literal["info", "warning", "critical"]
MOST_CASES = 10_000  # of a problem that are remembered one by one
WORST_FIRST: tuple[Severity, ...] = ("critical", "warning", "info")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: its stable code, how bad it is, what it is in words ("boxes with zero area: {count}"), and what to do."""

    code: str
    severity: Severity
    words: str
    fix: str


@functools.cache
def kinds() -> dict[str, Kind]:
    """Every kind of problem, from the table `problems.md` beside this file; where several share a code, a word follows it."""
    table = {}
    for line in Path(__file__).with_name("problems.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 5:
            code, of, severity, message, fix = cells
            table[f"{code} {of}".strip()] = Kind(code, cast(Severity, severity), message, fix)
    return table


class Fault(NamedTuple):
    """One place where something is wrong. It travels between processes and through the cache, so it is plain text and numbers."""

    code: str
    file: str
    line: int  # 0: the file as a whole
    detail: str

    @property
    def place(self) -> str:
        """`file`, or `file:line`."""
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(slots=True)
class Problem:
    """All faults of one kind in a data set. `files` are relative to its folder, each once, in the order they were met."""

    code: str
    severity: Severity
    words: str
    count: int
    files: list[str]
    example: str
    fix: str
    evidence: dict[str, Any] = field(default_factory=dict)
    cases: list[str] = field(default_factory=list)  # each with its file, where files, pairs and rows do not say it all

    def every_case(self) -> list[str]:
        """All cases that are remembered, one a line."""
        if self.cases:
            return self.cases
        pairs = [f"{later} matches {first}" for first, later in self.evidence.get("pairs", ())]
        rows = [f"{file}: row {row:,}" for file, some in self.evidence.get("in_files", {}).items() for row in some]
        return pairs or rows or self.files or [self.example]


def problem(
    name: str, *, count: int, files: list[str], example: str, words: str | None = None, cases: Sequence[str] = (), **evidence: Any
) -> Problem:
    """A problem of a kind, by its name in the table; `words` where the usual ones are not exact enough."""
    kind = kinds()[name]
    sentence = (words or kind.words).format(count=f"{count:,}")
    return Problem(kind.code, kind.severity, sentence, count, files, example, kind.fix, evidence, list(cases[:MOST_CASES]))


class Faults:
    """Faults as they are met, counted by kind: of each kind the files are kept, and the first ten thousand cases."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._counts: Counter[str] = Counter()
        self._files: dict[str, dict[str, None]] = {}
        self._cases: dict[str, list[str]] = {}
        self.add(faults)

    def add(self, faults: Iterable[Fault]) -> None:
        """More of them."""
        for fault in faults:
            self._counts[fault.code] += 1
            self._files.setdefault(fault.code, {})[fault.file] = None
            cases = self._cases.setdefault(fault.code, [])
            if len(cases) < MOST_CASES:
                cases.append(f"{fault.place}: {fault.detail}".rstrip(": "))

    def problems(self) -> Iterator[Problem]:
        """One for each kind."""
        for code, count in self._counts.items():
            cases = self._cases[code]
            yield problem(code, count=count, files=list(self._files[code]), example=cases[0], cases=cases)


def sorted_by_severity(problems: Iterable[Problem]) -> list[Problem]:
    """The worst first; among equals, the most frequent."""
    return sorted(problems, key=lambda item: (WORST_FIRST.index(item.severity), -item.count, item.code))


@dataclass(slots=True, kw_only=True)
class Answer:
    """What the answers of `validate` and `stats` have in common. `splits` counts the samples of each split, in `unit`."""

    path: str = ""
    format: str
    unit: str = "images"
    splits: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    remembered: bool = False  # nothing changed since the last time, whose answer this is

    @property
    def samples(self) -> int:
        """How many there are in all splits."""
        return sum(self.splits.values())

    def as_row(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "samples": self.samples, "seconds": round(self.seconds, 3)}


def restored(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of an answer that was made into a row; its time was that of the first look."""
    return {key: value for key, value in row.items() if key not in ("samples", "seconds")}


@dataclass(slots=True, kw_only=True)
class Report(Answer):
    """The answer of validation. `classes` counts the samples or objects of each."""

    classes: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def count(self, severity: str) -> int:
        """How many problems are this bad."""
        return sum(problem.severity == severity for problem in self.problems)


def report_from(row: dict[str, Any]) -> Report:
    """The report that was made into a row."""
    return Report(**{**restored(row), "problems": [Problem(**problem) for problem in row["problems"]]})
