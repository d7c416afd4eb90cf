"""Validate data: open it, look at all of it, and report what is wrong."""

from __future__ import annotations

import contextlib
from pathlib import Path

from holdfast.data.cache import Cache
from holdfast.data.columns import TableSet
from holdfast.data.formats.detect import Data, Settings, answer
from holdfast.data.image_checks import Gathering
from holdfast.data.problem import Report, gathered, report_from, sorted_by_severity
from holdfast.data.samples import ImageSet
from holdfast.data.scan import Progress, scan
from holdfast.data.table_checks import TableGathering
from holdfast.data.text_checks import TextCounts
from holdfast.errors import UsageError

PURPOSE = "validate"  # of the cache: what is remembered of samples is also what `holdfast visualize` reads


def validate(path: str | Path, settings: Settings, progress: Progress | None = None) -> Report:
    """The report on a data set. What did not change since the last time is not read again; a data set of code always is."""
    return answer(path, settings, PURPOSE, lambda data, cache: judged(data, settings, cache, progress), report_from)


def judged(data: Data, settings: Settings, cache: Cache, progress: Progress | None = None) -> Report:
    """The report on data that is open."""
    if isinstance(data, ImageSet):
        return _images(data, settings, cache, progress)
    if isinstance(data, TableSet):
        return _table(data, settings, progress)
    counts = TextCounts(data, progress)
    problems = sorted_by_severity(counts.problems())
    return Report("", "text", data.unit, counts.splits, problems=problems, notes=data.notes)


def _images(data: ImageSet, settings: Settings, cache: Cache, progress: Progress | None) -> Report:
    """Look at every image, and at all of them together."""
    gathering = Gathering(data)
    samples = scan(data, cache, jobs=settings.jobs, quick=settings.quick, masks=not settings.quick, progress=progress)
    with contextlib.closing(samples):  # Ctrl-C closes it, and it keeps what was done
        for entry, facts in samples:
            gathering.add(entry, facts)
    report = Report("", data.format, "images", gathering.splits, gathering.named_classes(), notes=data.notes)
    report.problems = sorted_by_severity(gathering.problems())
    if settings.quick:
        report.notes.append(
            "quick: nothing was decoded, so damage inside images, masks, look-alikes and pixel statistics were not looked for"
        )
    return report


def _table(data: TableSet, settings: Settings, progress: Progress | None) -> Report:
    """Read every chunk once, and judge what is left. Files with other columns are other tables."""
    tables: dict[frozenset[str], TableGathering] = {}
    for part, first, chunk in data.read(progress):
        table = tables.setdefault(frozenset(chunk), TableGathering(settings.label, data.class_names))
        table.add(part.split, part.file, chunk, first)
    columns = list(dict.fromkeys(name for table in tables.values() for name in table.columns))
    if settings.label is not None and tables and settings.label not in columns:
        raise UsageError(f"{data.root} has no column {settings.label}", fix=f"one of: {', '.join(columns[:20])}")
    report = Report("", data.format, data.unit, notes=data.notes)
    problems = list(gathered(data.faults))
    for table in tables.values():
        for split, rows in table.splits.items():
            report.splits[split] = report.splits.get(split, 0) + rows
        report.classes = report.classes or table.named_classes()
        report.notes += table.notes()
        problems += table.problems()
    report.problems = sorted_by_severity(problems)
    return report


__all__ = ["PURPOSE", "Settings", "judged", "validate"]
