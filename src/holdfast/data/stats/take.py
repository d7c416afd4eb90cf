"""Take the statistics of data: recognise it, let all of it go by, and remember the answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.data.cache import Cache, fingerprint_of_files, stamp_of
from holdfast.data.formats import text, torch_dataset
from holdfast.data.formats.detect import is_image_format, list_data, open_images, open_table, recognised
from holdfast.data.formats.torch_dataset import is_factory
from holdfast.data.listing import Listing
from holdfast.data.samples import FORMATS
from holdfast.data.scan import Progress, ScanSettings
from holdfast.data.stats.images import image_statistics
from holdfast.data.stats.report import Statistics, statistics_from
from holdfast.data.stats.tables import table_statistics
from holdfast.data.stats.text import text_statistics
from holdfast.data.stats.token_names import token_names
from holdfast.errors import UsageError

_VERSION = 1  # raise it whenever figures or measurements change their meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSettings:
    """What the user asked for. `classes`: only these; `pixels`: decode images, too."""

    format: str | None = None
    jobs: int = 0
    pixels: bool = False
    label: str | None = None
    tree: str | None = None
    tokenizer: Path | None = None
    classes: frozenset[str] = frozenset()
    also: tuple[Path, ...] = ()
    cache: Path | None = None  # the folder of the caches; None: nothing is remembered


def take_statistics(path: str | Path, settings: StatsSettings, progress: Progress | None = None) -> Statistics:
    """The statistics of a data set. What did not change since the last time is not read again; a data set of code always is."""
    started = time.perf_counter()
    if settings.format is not None and settings.format not in FORMATS:
        raise UsageError(f"{settings.format} is no format", fix=f"one of: {', '.join(FORMATS)}")
    if settings.format == "dataset" or (is_factory(str(path)) and not Path(path).exists()):
        data = torch_dataset.read(str(path))
        found = table_statistics(str(path), data, label=settings.label, only=settings.classes, progress=progress)
    else:
        found = _of_files(Path(path), settings, progress)
    found.seconds = time.perf_counter() - started
    return found


def _of_files(path: Path, settings: StatsSettings, progress: Progress | None) -> Statistics:
    listing, named = list_data(path, settings.also)
    measured = ("stats", _VERSION, settings.format, settings.pixels, settings.also)
    asked = (settings.label, settings.tree, sorted(settings.classes), settings.tokenizer, stamp_of(settings.tokenizer))
    with Cache(settings.cache, str(listing.root), named, measured) as cache:
        stamp = fingerprint_of_files(listing.files, listing.outside, asked) if settings.cache else ""
        row = cache.report(stamp)
        if row is not None:
            return statistics_from({**row, "path": str(path), "remembered": True})
        found = _taken(path, listing, named, settings, cache, progress)
        cache.keep_report(stamp, found.as_row())
    return found


def _taken(
    path: Path, listing: Listing, named: str | None, settings: StatsSettings, cache: Cache, progress: Progress | None
) -> Statistics:
    format = settings.format or recognised(listing, named)
    if is_image_format(format):
        data = open_images(listing, named, format)
        processes = ScanSettings(jobs=settings.jobs).processes
        return image_statistics(
            str(path), data, cache, only=settings.classes, pixels=settings.pixels, processes=processes, progress=progress
        )
    if format == "text":
        if settings.classes:
            raise UsageError("text has no classes", fix="leave out --class")
        texts = text.read(listing, named, settings.tokenizer)
        beside = listing.root / texts.tokenizer_file if texts.tokenizer_file else None
        return text_statistics(str(path), texts, token_names(settings.tokenizer or beside), progress)
    table = open_table(listing, named, format, settings.tree)
    return table_statistics(str(path), table, label=settings.label, only=settings.classes, progress=progress)
