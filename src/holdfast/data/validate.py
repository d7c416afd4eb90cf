"""Validate data: recognise it, look at all of it, and say what is wrong."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.data.cache import Cache, fingerprint_of_files, stamp_of
from holdfast.data.checks.kinds import BY_CODE
from holdfast.data.columns import TableSet, Unreadable
from holdfast.data.formats import text, torch_dataset
from holdfast.data.formats.detect import is_image_format, list_data, open_images, open_table, recognised
from holdfast.data.formats.torch_dataset import is_factory
from holdfast.data.image_checks import Gathering
from holdfast.data.listing import Listing
from holdfast.data.problem import Fault, gathered, sorted_by_severity
from holdfast.data.report import Report, report_from
from holdfast.data.samples import FORMATS, ImageSet
from holdfast.data.scan import Progress, ScanSettings, scan
from holdfast.data.table_checks import TableGathering
from holdfast.data.text_checks import TextGathering
from holdfast.errors import UsageError

_UNREADABLE = {
    "table": "table-unreadable",
    "array": "array-unreadable",
    "root": "tree-unreadable",
    "dataset": "sample-unreadable",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user asked for."""

    format: str | None = None
    jobs: int = 0
    quick: bool = False
    label: str | None = None
    tree: str | None = None
    tokenizer: Path | None = None
    embedding_rows: int | None = None
    also: tuple[Path, ...] = ()
    cache: Path | None = None  # the folder of the caches; None: nothing is remembered

    @property
    def judged_by(self) -> tuple[object, ...]:
        """Those settings on which the answer depends."""
        return (self.format, self.quick, self.also, self.label, self.tree, self.tokenizer, self.embedding_rows)


def validate(path: str | Path, settings: Settings, progress: Progress | None = None) -> Report:
    """The report on a data set. What did not change since the last time is not read again; a data set of code always is."""
    started = time.perf_counter()
    if settings.format is not None and settings.format not in FORMATS:
        raise UsageError(f"{settings.format} is no format", fix=f"one of: {', '.join(FORMATS)}")
    if settings.format == "dataset" or (is_factory(str(path)) and not Path(path).exists()):
        report = judged_table(str(path), torch_dataset.read(str(path)), settings, progress)
    else:
        report = _of_files(Path(path), settings, progress)
    report.seconds = time.perf_counter() - started
    return report


def _of_files(path: Path, settings: Settings, progress: Progress | None) -> Report:
    listing, named = list_data(path, settings.also)
    with Cache(settings.cache, str(listing.root), named, settings.judged_by) as cache:
        stamp = fingerprint_of_files(listing.files, listing.outside, stamp_of(settings.tokenizer)) if settings.cache else ""
        row = cache.report(stamp)
        if row is not None:
            return report_from({**row, "path": str(path), "remembered": True})
        report = _judged(path, listing, named, settings, cache, progress)
        cache.keep_report(stamp, report.as_row())
    return report


def _judged(
    path: Path, listing: Listing, named: str | None, settings: Settings, cache: Cache, progress: Progress | None
) -> Report:
    format = settings.format or recognised(listing, named)
    if is_image_format(format):
        data = open_images(listing, named, format)
        return judged_images(path, data, cache, ScanSettings(jobs=settings.jobs, quick=settings.quick), progress)
    if format == "text":
        return judged_text(path, text.read(listing, named, settings.tokenizer, settings.embedding_rows), progress)
    return judged_table(str(path), open_table(listing, named, format, settings.tree), settings, progress)


def judged_images(
    path: Path, data: ImageSet, cache: Cache, settings: ScanSettings, progress: Callable[[int, int], None] | None
) -> Report:
    """Look at every image, and at all of them together."""
    if not data.entries and not data.faults:
        raise UsageError(f"{path} holds no image", fix="name the folder above the images, or another --format")
    gathering = Gathering(data)
    with contextlib.closing(scan(data, cache, settings, progress)) as samples:  # Ctrl-C closes it, and it keeps what was done
        for entry, facts in samples:
            gathering.add(entry, facts)
    report = Report(str(path), data.format, "images", gathering.splits, gathering.named_classes())
    report.problems = sorted_by_severity(gathering.problems())
    report.notes += data.notes
    if settings.quick:
        report.notes.append(
            "quick: nothing was decoded, so damage inside images, masks, look-alikes and pixel statistics were not looked for"
        )
    return report


def judged_table(path: str, data: TableSet, settings: Settings, progress: Progress | None) -> Report:
    """Let every chunk go by once, and judge what is left."""
    tables = _gone_through(data, settings.label, progress)
    columns = list(dict.fromkeys(name for table in tables for name in table.columns))
    if settings.label is not None and tables and settings.label not in columns:
        raise UsageError(f"{path} has no column {settings.label}", fix=f"one of: {', '.join(columns[:20])}")
    if not data.parts and not data.faults:
        raise UsageError(f"{path} holds nothing to read", fix="name a file, or another --format")
    report = Report(path, data.format, "samples" if data.format == "dataset" else "rows", notes=data.notes)
    problems = list(gathered(data.faults, BY_CODE))
    for table in tables:
        for split, rows in table.splits.items():
            report.splits[split] = report.splits.get(split, 0) + rows
        report.classes = report.classes or table.named_classes()
        report.notes += table.notes()
        problems += table.problems()
    report.problems = sorted_by_severity(problems)
    return report


def _gone_through(data: TableSet, label: str | None, progress: Progress | None) -> list[TableGathering]:
    """All chunks, gathered by the columns they have: files with other columns are other tables."""
    tables: dict[frozenset[str], TableGathering] = {}
    total, done = sum(part.rows or 0 for part in data.parts), 0
    for part in data.parts:
        try:
            for chunk in part.chunks():
                if chunk:
                    tables.setdefault(frozenset(chunk), TableGathering(label)).add(part.split, part.file, chunk)
                    done += next(iter(chunk.values())).rows
                if progress:
                    progress(done, max(total, done))
        except Unreadable as error:
            data.faults.append(Fault(_UNREADABLE[data.format], part.file, 0, str(error)))
    return list(tables.values())


def judged_text(path: Path, data: text.TextSet, progress: Progress | None) -> Report:
    """Read every line once."""
    gathering = TextGathering(data)
    gathering.read(progress)
    report = Report(str(path), "text", data.unit, gathering.splits)
    report.problems = sorted_by_severity(gathering.problems())
    report.notes = data.notes
    return report
