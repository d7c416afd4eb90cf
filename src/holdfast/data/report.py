"""What validation says: what the data is, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.data.problem import Problem


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
