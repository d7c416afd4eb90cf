"""Validate data: open it, look at all of it, and report what is wrong, also as a page."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from holdfast.data.cache import Cache
from holdfast.data.columns import TableSet
from holdfast.data.formats.detect import Data, Settings, answer, open_data
from holdfast.data.image_checks import ImageFindings
from holdfast.data.problem import WORST_FIRST, Fault, Faults, Problem, Report, report_from, sorted_by_severity
from holdfast.data.samples import Entry, ImageSet
from holdfast.data.scan import Progress, scan
from holdfast.data.table_checks import TableFindings
from holdfast.data.text_checks import TextCounts
from holdfast.data.visualize.image_drawing import ImageDrawing
from holdfast.data.visualize.pictures import Tile
from holdfast.drawing.pages import rendered
from holdfast.errors import HoldfastError, UsageError

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
    return Report(format="text", unit=data.unit, splits=counts.splits, problems=problems, notes=data.notes)


def _images(data: ImageSet, settings: Settings, cache: Cache, progress: Progress | None) -> Report:
    """Look at every image, and at all of them together."""
    images = ImageFindings(data)
    samples = scan(data, cache, jobs=settings.jobs, quick=settings.quick, masks=not settings.quick, progress=progress)
    with contextlib.closing(samples):  # Ctrl-C closes it, and it keeps what was done
        for entry, facts in samples:
            images.add(entry, facts)
    report = Report(format=data.format, splits=images.splits, classes=images.named_classes(), notes=data.notes)
    report.problems = sorted_by_severity(images.problems())
    if settings.quick:
        report.notes.append(
            "quick: nothing was decoded, so damage inside images, masks, look-alikes and pixel statistics were not looked for"
        )
    return report


def _table(data: TableSet, settings: Settings, progress: Progress | None) -> Report:
    """Read every chunk once, and judge what is left. Files with other columns are other tables."""
    tables: dict[frozenset[str], TableFindings] = {}
    for part, first, chunk in data.read(progress):
        table = tables.setdefault(frozenset(chunk), TableFindings(settings.label, data.class_names))
        table.add(part.split, part.file, chunk, first)
    columns = list(dict.fromkeys(name for table in tables.values() for name in table.columns))
    if settings.label is not None and tables and settings.label not in columns:
        raise UsageError(f"{data.root} has no column {settings.label}", fix=f"one of: {', '.join(columns[:20])}")
    report = Report(format=data.format, unit=data.unit, notes=data.notes)
    problems = list(Faults(data.faults).problems())
    for table in tables.values():
        for split, rows in table.splits.items():
            report.splits[split] = report.splits.get(split, 0) + rows
        report.classes = report.classes or table.named_classes()
        report.notes += table.notes()
        problems += table.problems()
    report.problems = sorted_by_severity(problems)
    return report


_LISTED = 200
_SHOWN = 8  # thumbnails of a problem
_LINE = re.compile(r"(.*?):(\d+): ")  # a case that names a line of a label
_BROKEN = frozenset({"image-unreadable", "image-truncated", "image-empty", "image-huge"})  # a decoder may crash or hang on them


def page(report: Report) -> str:
    """The whole file."""
    title = f"{report.path}: {report.format}"
    return rendered(
        "report.html", title=title, report=report, listed=_LISTED, severities=WORST_FIRST, thumbnails=_thumbnails(report)
    )


def _thumbnails(report: Report) -> list[list[tuple[str, Tile]]]:
    """For each problem the first images that show it; none where the data is not images, or is gone."""
    try:
        data = open_data(report.path, Settings(format=report.format))
    except HoldfastError:
        data = None
    if not isinstance(data, ImageSet):
        return [[] for _ in report.problems]
    broken = {file for problem in report.problems if problem.code in _BROKEN for file in problem.files}
    shown: dict[str, Entry] = {}
    for entry in data.entries:
        for file in (entry.image, entry.own_label, *entry.masks):
            if file and entry.image not in broken:
                shown.setdefault(file, entry)
    drawing = ImageDrawing(data, {key: place for place, key in enumerate({**data.classes, **report.classes})}, {})
    return [_of_problem(drawing, problem, shown) for problem in report.problems]


def _of_problem(drawing: ImageDrawing, problem: Problem, shown: dict[str, Entry]) -> list[tuple[str, Tile]]:
    pairs = [file for pair in problem.evidence.get("pairs", ())[: _SHOWN // 2] for file in pair]
    entries = list(dict.fromkeys(shown[file] for file in pairs or problem.files[: 10 * _SHOWN] if file in shown))
    lines: dict[str, list[Fault]] = {}  # of labels, by file: what is wrong there is drawn in red
    for file, line in (match.groups() for case in problem.cases[: 100 * _SHOWN] if (match := _LINE.match(case))):
        lines.setdefault(file, []).append(Fault(problem.code, file, int(line), ""))
    shown_entries = [(entry, tuple(lines.get(entry.own_label or entry.image, ()))) for entry in entries[:_SHOWN]]
    return [(entry.image, drawing.tile(entry, faults)) for entry, faults in shown_entries]


__all__ = ["PURPOSE", "Report", "Settings", "judged", "page", "report_from", "validate"]
