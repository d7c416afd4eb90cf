"""Bins for the values of a column: chosen from its range and a sample of it, then filled chunk after chunk."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.data.column_summary import ColumnSummary

BINS = 32
_RARE = 0.005  # share of values at each end that may stay outside
_AROUND = 0.25  # of the width of all others, which is added at each end
_DECADES = 100.0  # from small to large, above which bins may grow
_TINY, _HUGE = 1e-300, 1e308
_TO_THE_LEFT = 0.05  # where the middle then lies


class Bins:
    """The edges, and counts by split. With `ahead`, values may come that the summary has not seen: more bins, `trimmed` later."""

    def __init__(self, summary: ColumnSummary, *, ahead: bool = False) -> None:
        self.growing, self.whole = False, _is_whole(summary)
        self.edges = self._edges(summary, ahead)
        self.counts: dict[str, npt.NDArray[np.int64]] = {}
        self.below = self.above = 0

    def _edges(self, summary: ColumnSummary, ahead: bool) -> npt.NDArray[np.float64]:
        low, high = summary.low, summary.high
        if not low <= high or not len(summary.sample):
            return np.array([0.0, 1.0])
        if ahead:
            low, high = max(2 * low - high, -_HUGE), min(2 * high - low, _HUGE)
        bins = 3 * BINS if ahead else BINS
        first, middle, last = np.quantile(summary.sample, (_RARE, 0.5, 1 - _RARE)).tolist()
        around = (1.0 if ahead else _AROUND) * (last - first)
        if first < last:  # otherwise nearly all are one value, and the others are what is to be seen
            low, high = max(low, first - around), min(high, last + around)
        if self.whole:
            return _whole_edges(low, high, bins)
        if not low < high:
            wide = max(abs(low) * 1e-3, _TINY)
            return np.array([low - wide, low + wide])
        if first > 0 and last > _DECADES * first and middle - first < _TO_THE_LEFT * (last - first):
            self.growing = True
            return np.geomspace(max(low, first / 2, _TINY), high, bins + 1)
        return 4 * np.linspace(low / 4, high / 4, bins + 1)  # the distance of the largest numbers is none that is finite

    def add(self, split: str, values: npt.NDArray[Any]) -> None:
        """Count numbers; those that are not finite are left out."""
        numbers = values.astype(np.float64).ravel()
        numbers = numbers[np.isfinite(numbers)]
        inside = np.histogram(numbers, self.edges)[0]
        self.counts[split] = self.counts.get(split, np.zeros(len(self.edges) - 1, np.int64)) + inside
        self.below += int((numbers < self.edges[0]).sum())
        self.above += int((numbers > self.edges[-1]).sum())

    def median(self) -> float | None:
        """The middle of all values, read from the bins; None where it lies outside of them."""
        total = sum(self.counts.values(), np.zeros(len(self.edges) - 1, np.int64))
        sums = np.cumsum(total) + self.below
        half = (int(sums[-1]) + self.above) / 2
        place = int(np.searchsorted(sums, half))
        if half <= self.below or place >= len(total):
            return None
        left, right = float(self.edges[place]), float(self.edges[place + 1])
        if self.whole and right - left == 1:
            return left + 0.5
        return left + (right - left) * (half - float(sums[place] - total[place])) / float(total[place])

    def trimmed(self) -> None:
        """Drop empty bins at the ends, and join neighbours until they are few."""
        total = sum(self.counts.values(), np.zeros(len(self.edges) - 1, np.int64))
        there = np.flatnonzero(total)
        if not len(there):
            return
        first, last = int(there[0]), int(there[-1]) + 1
        step = -(-(last - first) // BINS)
        starts = np.arange(first, last, step)
        self.edges = self.edges[[*starts.tolist(), min(int(starts[-1]) + step, len(self.edges) - 1)]]
        self.counts = {split: np.add.reduceat(some, starts) for split, some in self.counts.items()}


def _is_whole(summary: ColumnSummary) -> bool:
    if summary.dtype.kind in "iu":
        return True
    sample = summary.sample
    return bool((np.abs(sample) < 1e15).all() and (sample == np.round(sample)).all())


def _whole_edges(low: float, high: float, most: int) -> npt.NDArray[np.float64]:
    first, last = math.floor(low), math.ceil(high)
    step = max(1, math.ceil((last - first + 1) / most))
    bins = max(1, math.ceil((last - first + 1) / step))
    return first - 0.5 + step * np.arange(bins + 1, dtype=np.float64)
