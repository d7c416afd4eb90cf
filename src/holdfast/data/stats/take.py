"""Take the statistics of data: open it, count all of it, remember the answer, and write it as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from holdfast.data.cache import Cache
from holdfast.data.columns import TableSet
from holdfast.data.formats.detect import Data, Settings, answer
from holdfast.data.formats.text import TextSet
from holdfast.data.samples import ImageSet
from holdfast.data.scan import Progress
from holdfast.data.stats.figures import Distribution, Figure, Statistics, bars, statistics_from
from holdfast.data.stats.images import image_statistics
from holdfast.data.stats.tables import table_statistics
from holdfast.data.text_checks import TextCounts
from holdfast.drawing.pages import rendered
from holdfast.errors import UsageError

_FIGURES, _UNREADABLE = 1000, 200  # of a page


def take_statistics(path: str | Path, settings: Settings, progress: Progress | None = None) -> Statistics:
    """The statistics of a data set. What did not change since the last time is not read again; a data set of code always is."""

    def counted(data: Data, cache: Cache) -> Statistics:
        if isinstance(data, ImageSet):
            return image_statistics(data, cache, settings, progress)
        if isinstance(data, TableSet):
            return table_statistics(data, label=settings.label, only=settings.classes, progress=progress)
        if settings.classes:
            raise UsageError("text has no classes", fix="drop --class")
        return text_statistics(data, progress)

    return answer(path, settings, "stats", counted, statistics_from)


def page(statistics: Statistics) -> str:
    """The statistics as one HTML file that needs nothing else."""
    return rendered(
        "stats.html", title=f"{statistics.path}: {statistics.format}", statistics=statistics, splits=list(statistics.splits),
        figures=statistics.figures[:_FIGURES], more=len(statistics.figures) - _FIGURES,
        unreadable=list(statistics.unreadable.items())[:_UNREADABLE],
    )  # fmt: skip


_LISTED = 50
_MOST = 100  # tokens whose share of the text is told


def text_statistics(data: TextSet, progress: Progress | None) -> Statistics:
    """Read every line once."""
    counts = TextCounts(data, progress, frequencies=True)
    report = Statistics(format="text", unit=data.unit, splits=counts.splits, notes=data.notes)
    report.add_faults(counts.faults)
    report.figures = list(_figures(data, counts))
    return report


def _figures(data: TextSet, counts: TextCounts) -> Iterator[Figure]:
    """Lengths, what is not known, and the most frequent."""
    lengths = Distribution().add_counts(counts.lengths)
    if lengths.number:
        empty = sum(some[0] for some in counts.lengths.values())
        note = f"{lengths.number:,} lines" + (f", {empty:,} of them empty" if empty else "")
        yield lengths.histogram("line-length", f"{data.unit} per line", note=note)
    if data.tokenizer and data.tokenizer.unknown is not None:
        some = {split: often[data.tokenizer.unknown] for split, often in counts.often.items()}
        counted = {split: Counter(known=counts.splits[split] - count, unknown=count) for split, count in some.items()}
        note = f"{sum(some.values()) / max(1, sum(counts.splits.values())):.2%} unknown"
        yield bars("unknown", "known to the tokenizer", "tokens", counted, kinds=["known", "unknown"], note=note)
    total: Counter[int] = sum(counts.often.values(), Counter())
    if total:
        share = sum(count for _, count in total.most_common(_MOST)) / total.total()
        of = f" of {data.tokenizer.size:,} in the vocabulary" if data.tokenizer else ""
        note = f"{len(total):,}{of} occur" + (f"; the {_MOST} most frequent make {share:.0%}" if len(total) > _MOST else "")
        yield bars(
            "frequency", f"most frequent {data.unit}", "times", counts.often, most=_LISTED, note=note,
            name=lambda number: _name(data, number),
        )  # fmt: skip


def _name(data: TextSet, number: int) -> str:
    """A token or character as one can see it."""
    names = data.tokenizer.names if data.tokenizer else {}
    if data.tokenizer and number == data.tokenizer.unknown:
        return names.get(number, "(unknown)")
    if number not in names and data.unit == "tokens":
        return str(number)
    token = chr(number) if data.unit == "characters" else names[number]
    return token if token.isprintable() and token.strip() else repr(token)
