"""Take the statistics of data: open it, count all of it, and remember the answer."""

from __future__ import annotations

from pathlib import Path

from holdfast.data.cache import Cache
from holdfast.data.columns import TableSet
from holdfast.data.formats.detect import Data, Settings, answer
from holdfast.data.samples import ImageSet
from holdfast.data.scan import Progress
from holdfast.data.stats.images import image_statistics
from holdfast.data.stats.report import Statistics, statistics_from
from holdfast.data.stats.tables import table_statistics
from holdfast.data.stats.text import text_statistics
from holdfast.errors import UsageError

StatsSettings = Settings


def take_statistics(path: str | Path, settings: Settings, progress: Progress | None = None) -> Statistics:
    """The statistics of a data set. What did not change since the last time is not read again; a data set of code always is."""
    return answer(path, settings, "stats", lambda data, cache: counted(data, settings, cache, progress), statistics_from)


def counted(data: Data, settings: Settings, cache: Cache, progress: Progress | None = None) -> Statistics:
    """The statistics of data that is open."""
    if isinstance(data, ImageSet):
        return image_statistics(data, cache, settings, progress)
    if isinstance(data, TableSet):
        return table_statistics(data, label=settings.label, only=settings.classes, progress=progress)
    if settings.classes:
        raise UsageError("text has no classes", fix="leave out --class")
    return text_statistics(data, progress)
