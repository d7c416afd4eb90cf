"""Examine all samples of image data: those that changed since the last time, on all cores, in bounded memory.

What is done is kept in the cache every second, so Ctrl-C loses nothing: the next run goes on from there.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from holdfast.data.cache import Cache
from holdfast.data.examine import Examination, stamps
from holdfast.data.facts import Facts
from holdfast.data.samples import Entry, ImageSet
from holdfast.data.workers import Looking, Seen, examined_by_many

_FEW = 48  # samples for which no process is started
_KEEP_EVERY = 1.0  # seconds
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSettings:
    """How a scan is done. `jobs` 0: all cores that this process may use."""

    jobs: int = 0
    quick: bool = False

    @property
    def processes(self) -> int:
        """How many processes that makes."""
        if self.jobs > 0:
            return self.jobs
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def scan(
    data: ImageSet, cache: Cache, settings: ScanSettings, progress: Progress | None = None
) -> Generator[tuple[Entry, Facts], None, None]:
    """Each sample with its facts, in the order of the set; those that are remembered are not looked at again."""
    classes = frozenset(data.classes) if data.classes_are_known else None
    how = Examination(root=data.root, read_label=data.read_label, classes=classes, has_boxes=data.has_boxes, quick=settings.quick)
    return looked_at(data, cache, how, settings.processes, progress)


def looked_at(
    data: ImageSet, cache: Cache, how: Looking[Seen], processes: int, progress: Progress | None = None
) -> Generator[tuple[Entry, Seen], None, None]:
    """The same with any way to look; a cache belongs to one of them."""
    todo = _changed(data, cache) if cache.remembers else list(range(len(data.entries)))
    examined = _examined(data, todo, how, processes)
    with contextlib.closing(_kept(data, cache, examined)) as kept:
        yield from _all(data, cache, how, todo, _in_order(kept, todo), progress)


def _all(
    data: ImageSet, cache: Cache, how: Looking[Seen], todo: list[int], fresh: Iterator[Seen], progress: Progress | None
) -> Iterator[tuple[Entry, Seen]]:
    """Samples that are remembered and samples that are done just now, in one row."""
    coming = iter(todo)
    following, done, total = next(coming, -1), len(data.entries) - len(todo), len(data.entries)
    for number, entry in enumerate(data.entries):
        if number == following:
            following, done = next(coming, -1), done + 1
            yield entry, next(fresh)
            if progress:
                progress(done, total)
            continue
        row = cache.facts_of(_name(entry))
        yield entry, how.remembered(row) if row else how.look(entry)


def _changed(data: ImageSet, cache: Cache) -> list[int]:
    """The samples that are not remembered as they are now."""
    remembered, stamp = cache.stamps(), _stamps(data)
    return [number for number, entry in enumerate(data.entries) if remembered.get(_name(entry)) != stamp(entry)]


def _name(entry: Entry) -> str:
    return f"{entry.split}/{entry.image}"


def _stamps(data: ImageSet) -> Callable[[Entry], str]:
    """What a sample is made of, and what it is judged by: a class that is listed now was out of range before."""
    judged_by = data.judged_by
    return lambda entry: f"{stamps(entry, data.listing.files)} {judged_by}"


def _in_order(examined: Iterator[tuple[int, Seen]], order: list[int]) -> Iterator[Seen]:
    """What was seen, in the order of the set; what is done too early waits."""
    early: dict[int, Seen] = {}
    for number in order:
        while number not in early:
            done, seen = next(examined)
            early[done] = seen
        yield early.pop(number)


def _examined(data: ImageSet, todo: list[int], how: Looking[Seen], processes: int) -> Generator[tuple[int, Seen], None, None]:
    if processes == 1 or len(todo) <= _FEW:
        return ((number, how.look(data.entries[number])) for number in todo)
    return examined_by_many(how, ((number, data.entries[number]) for number in todo), processes)


def _kept(
    data: ImageSet, cache: Cache, examined: Generator[tuple[int, Seen], None, None]
) -> Generator[tuple[int, Seen], None, None]:
    """Pass on what is seen, and put them into the cache about once a second and at the end, however that comes."""
    if not cache.remembers:
        with contextlib.closing(examined):
            yield from examined
        return
    fresh: list[tuple[int, Seen]] = []
    last = time.monotonic()
    try:
        for one in examined:
            fresh.append(one)
            yield one
            if time.monotonic() - last > _KEEP_EVERY:
                _keep(data, cache, fresh)
                fresh, last = [], time.monotonic()
    finally:
        examined.close()
        _keep(data, cache, fresh)


def _keep(data: ImageSet, cache: Cache, fresh: list[tuple[int, Seen]]) -> None:
    stamp, entries = _stamps(data), ((data.entries[number], seen) for number, seen in fresh)
    cache.keep_facts((_name(entry), stamp(entry), seen) for entry, seen in entries)
