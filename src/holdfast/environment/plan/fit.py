"""From a few measured batches to any other: a fixed part, and a part for each sample. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

_BENT = 0.05  # two slopes that differ by more are not on one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured batch: its size, and bytes at the peak of a step."""

    batch: int
    peak: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Bytes = fixed + per_sample * batch; `floor` is what even the smallest batch needs (the update itself)."""

    fixed: float
    per_sample: float
    floor: float = 0.0
    bent: bool = False  # the measured points are not on one line: predictions far beyond them are a guess

    def peak(self, batch: int) -> float:
        """Bytes for a batch."""
        return max(self.floor, self.fixed + self.per_sample * batch)

    def largest(self, memory: float) -> int:
        """The largest batch that fits; 0 if none does."""
        if self.floor > memory or self.fixed + self.per_sample > memory:
            return 0
        return int((memory - self.fixed) / self.per_sample) if self.per_sample > 0 else 1 << 30


def fit(points: Sequence[Point]) -> Line:
    """The line through the two largest batches: smaller ones may be ruled by the update, not by the samples.

    From one point alone (one sample fits, two do not) nothing is known but that so many samples need that much: a cautious guess.
    """
    ordered = sorted(points, key=lambda point: point.batch)
    if len(ordered) == 1:
        return Line(fixed=0.0, per_sample=ordered[0].peak / ordered[0].batch, bent=True)
    *_, smaller, larger = ordered
    slope = (larger.peak - smaller.peak) / (larger.batch - smaller.batch)
    line = Line(fixed=larger.peak - slope * larger.batch, per_sample=max(slope, 0.0), bent=is_bent(ordered))
    least = ordered[0]
    ruled = least.peak > (1 + _BENT) * line.peak(least.batch)  # by the update: the smallest batch needs more than its samples
    return replace(line, floor=float(least.peak)) if ruled else line


def is_bent(points: Sequence[Point]) -> bool:
    """Whether the last three points are clearly not on one line."""
    if len(points) < 3:
        return False
    first, second, third = sorted(points, key=lambda point: point.batch)[-3:]
    before = (second.peak - first.peak) / (second.batch - first.batch)
    after = (third.peak - second.peak) / (third.batch - second.batch)
    return abs(after - before) > _BENT * max(abs(after), abs(before), 1.0)
