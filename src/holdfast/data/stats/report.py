"""The answer of `holdfast stats`: what the data is, the figures, and what could not be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.data.problem import Fault
from holdfast.data.stats.figures import Figure, as_row, from_row

_NAMED = 1000
_NOT_READ = frozenset({"image-empty", "array-pickled", "image-missing", "split-missing", "path-outside"})


@dataclass(slots=True, kw_only=True)
class Statistics:
    """The answer. `splits` counts samples; `unreadable` names the first thousand files that could not be read, and why."""

    path: str = ""
    format: str
    unit: str = "images"
    splits: dict[str, int] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)  # that were asked for; empty: all
    figures: list[Figure] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    unreadable_count: int = 0
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    remembered: bool = False  # nothing changed since the last time, whose answer this is

    @property
    def samples(self) -> int:
        """How many there are in all splits."""
        return sum(self.splits.values())

    def add_faults(self, faults: Iterable[Fault], *, decoded: bool = False) -> None:
        """Count and name the files among them that could not be read; what else is wrong is for `holdfast validate`."""
        for fault in faults:
            if fault.code.endswith("-unreadable") or fault.code in _NOT_READ or (decoded and fault.code == "image-truncated"):
                place = fault.place
                self.unreadable_count += place not in self.unreadable
                if len(self.unreadable) < _NAMED:
                    self.unreadable.setdefault(place, fault.detail)

    def as_row(self) -> dict[str, Any]:
        """For JSON."""
        row = {**asdict(self), "samples": self.samples, "seconds": round(self.seconds, 3)}
        return {**row, "figures": [as_row(figure) for figure in self.figures]}


def statistics_from(row: dict[str, Any]) -> Statistics:
    """The statistics that were made into a row."""
    fields = {key: value for key, value in row.items() if key not in ("samples", "figures", "seconds")}
    return Statistics(**fields, figures=[from_row(figure) for figure in row["figures"]])
