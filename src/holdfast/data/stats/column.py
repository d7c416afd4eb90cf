"""One column of a table, array or tree: its numbers in bins, or its words counted; and entries a row where those differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from holdfast.data.column_summary import ColumnSummary
from holdfast.data.columns import Column
from holdfast.data.formats.splits import order_of
from holdfast.data.stats.bins import Bins
from holdfast.data.stats.figures import Bars, Figure, Histogram
from holdfast.data.stats.values import Values

_MOST_WORDS = 4096  # different ones that are counted
_LISTED = 50
_OUTSIDE = 0.02  # of the values, above which bins that were chosen too early are given up for a sample


class ColumnCounts:
    """Takes the chunks of one column, in one pass, or in two: the first for its range, the second for its bins."""

    def __init__(self, name: str, first: Column) -> None:
        self.name = name
        self.summary = ColumnSummary(first.values.dtype)
        self.words: dict[str, Counter[str]] | None = None if self.summary.is_number else {}
        self._uncounted = 0
        self._entries = Values()
        self._bins: Bins | None = None
        self._ahead = False

    def add(self, split: str, column: Column) -> None:
        """Some rows, for all that needs one pass only."""
        if self.summary.is_number and column.values.dtype.kind in "iuf":
            self.summary.add(column)
        elif self.words is not None:
            self._add_words(self.words.setdefault(split, Counter()), column)
        if column.counts is not None:
            for length, times in zip(*np.unique(column.counts, return_counts=True), strict=True):
                self._entries.add(split, int(length), int(times))

    def _add_words(self, words: Counter[str], column: Column) -> None:
        for word, count in sorted(Counter(str(value) for value in column.values.ravel().tolist()).items()):
            if word in words or len(words) < _MOST_WORDS:
                words[word] += count
            else:
                self._uncounted += count

    def count(self, split: str, column: Column, *, ahead: bool = False) -> None:
        """The same rows again, for the bins; `ahead` where this is the only pass."""
        if not self.summary.is_number or column.values.dtype.kind not in "iuf":
            return
        if self._bins is None:
            self._bins, self._ahead = Bins(self.summary, ahead=ahead), ahead
        self._bins.add(split, column.values)

    def figures(self) -> Iterator[Figure]:
        """The column, and how long its rows are."""
        if self.words is not None:
            yield self._bars(self.words)
        else:
            yield self._histogram()
        entries = self._entries.histogram(f"entries:{self.name}", f"entries of {self.name}", "a row")
        yield from [entries] if entries else []

    def _bars(self, words: dict[str, Counter[str]]) -> Bars:
        total: Counter[str] = sum(words.values(), Counter())
        splits = sorted(words, key=order_of)
        counts = {word or "(empty)": {split: words[split][word] for split in splits} for word, _ in total.most_common(_LISTED)}
        more = " or more" if self._uncounted else ""
        return Bars(
            key=f"column:{self.name}", title=self.name, unit="values", counts=counts, note=f"{len(total):,}{more} different",
            others=max(0, len(total) - _LISTED), of_others=self._uncounted + sum(n for _, n in total.most_common()[_LISTED:]),
        )  # fmt: skip

    def _histogram(self) -> Histogram:
        summary, bins = self.summary, self._bins or Bins(self.summary)
        spread = summary.spread
        low, high = (summary.low, summary.high) if len(summary.sample) else (None, None)
        note = ""
        if self._ahead:
            bins.trimmed()
        if bins.below + bins.above > _OUTSIDE * max(summary.count, 1):
            bins, note = Bins(summary), f"bins: of {len(summary.sample):,} values"
            bins.add("sample", summary.sample)
        return Histogram(
            key=f"column:{self.name}", title=self.name, unit="", note=note, growing=bins.growing, edges=bins.edges.tolist(),
            counts={split: bins.counts[split].tolist() for split in sorted(bins.counts, key=order_of)},
            below=bins.below, above=bins.above, nan=summary.nan, inf=summary.inf,
            low=low, high=high,
            mean=spread.mean if spread.number else None, deviation=spread.deviation if spread.number else None,
            median=low if low == high else bins.median(),
        )  # fmt: skip
