"""What statistics are made of: counts by name, histograms, grids. The terminal, the page and JSON hold the same ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal


@dataclass(slots=True, kw_only=True)
class Bars:
    """Counts by name and split, the most important first."""

    kind: ClassVar[str] = "bars"
    key: str  # stable, for programs
    title: str
    unit: str
    counts: dict[str, dict[str, int]]  # name, then split
    columns: dict[str, dict[str, int]] = field(default_factory=dict)  # what else is known of a name: title, then name
    others: int = 0  # names that are too many to be listed, and what was counted of them
    of_others: int = 0
    note: str = ""

    @property
    def totals(self) -> dict[str, int]:
        """Counts by name, of all splits."""
        return {name: sum(some.values()) for name, some in self.counts.items()}

    @property
    def whole(self) -> int:
        """All that was counted, also of names that are not listed."""
        return sum(self.totals.values()) + self.of_others


@dataclass(slots=True, kw_only=True)
class Histogram:
    """How values are spread. `edges` has one more than each row of `counts`; what lies outside is in `below` and `above`."""

    kind: ClassVar[str] = "histogram"
    key: str
    title: str
    unit: str
    edges: list[float]
    counts: dict[str, list[int]]  # split, then bin
    below: int = 0
    above: int = 0
    nan: int = 0
    inf: int = 0
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    deviation: float | None = None
    median: float | None = None
    growing: bool = False  # each bin is wider than the one before by the same factor
    note: str = ""

    @property
    def totals(self) -> list[int]:
        """Counts of all splits together."""
        return [sum(some) for some in zip(*self.counts.values(), strict=True)]


@dataclass(slots=True, kw_only=True)
class Grid:
    """Numbers in rows and columns: a `map` of a place in the image, or `pairs` of names."""

    kind: ClassVar[str] = "grid"
    key: str
    title: str
    unit: str
    shape: Literal["map", "pairs"]
    values: list[list[float]]
    names: list[str] = field(default_factory=list)  # of rows and columns, for pairs
    note: str = ""


Figure = Bars | Histogram | Grid


def as_row(figure: Figure) -> dict[str, Any]:
    """For JSON."""
    return {"kind": figure.kind, **asdict(figure)}


def from_row(row: dict[str, Any]) -> Figure:
    """The figure that was made into a row."""
    fields = {key: value for key, value in row.items() if key != "kind"}
    made: dict[str, type[Figure]] = {one.kind: one for one in (Bars, Histogram, Grid)}
    return made[row["kind"]](**fields)
