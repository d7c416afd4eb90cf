"""Examine all samples of image data: those that changed since the last time, on all cores, in bounded memory.

What is done is kept in the cache every second, so Ctrl-C loses nothing: the next run goes on from there.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from holdfast.data.cache import Cache
from holdfast.data.examine import Examination, examine, stamps
from holdfast.data.problem import Fault
from holdfast.data.samples import Entry, Facts, ImageSet, facts_from

# Processes that examine samples. One that dies or hangs on a file is replaced, and the file is named.
# Decoders are written in C and meet damaged files here; a crash or an endless loop in one must not end the scan.

_AT_ONCE = 32  # samples that are handed over together
_PATIENCE = 60.0  # seconds for one sample
Numbered = tuple[int, Entry]


def _work(how: Examination, door: Connection, at: Any) -> None:
    """What runs in each process. `at` is shared memory: it says which sample a death belongs to."""
    warnings.simplefilter("ignore")  # decoders warn about odd files in words of their own
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        while True:
            batch: list[Numbered] = door.recv()
            answers = []
            for number, entry in batch:
                at.value = number
                answers.append((number, examine(how, entry)))
            door.send(answers)


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """What is started meanwhile does not hear Ctrl-C: it is for the one who asks, who then ends the processes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Worker:
    """One process, what it was given, and which sample it is at."""

    def __init__(self, how: Examination) -> None:
        context = multiprocessing.get_context("spawn")
        self.door, theirs = context.Pipe()
        self._at = context.RawValue("q", -1)
        self.process = context.Process(target=_work, args=(how, theirs, self._at), daemon=True)
        with _deaf_to_ctrl_c():
            self.process.start()
        theirs.close()
        self.batch: list[Numbered] = []
        self._seen, self._since = -1, time.monotonic()

    @property
    def at(self) -> int:
        """The sample that it is at, or was at last."""
        return int(self._at.value)

    @property
    def silent(self) -> float:
        """Seconds since it was seen to begin another sample."""
        if self.at != self._seen:
            self._seen, self._since = self.at, time.monotonic()
        return time.monotonic() - self._since

    def give(self, batch: list[Numbered]) -> None:
        """Hand over samples."""
        self.batch, self._since = batch, time.monotonic()
        with contextlib.suppress(OSError):
            self.door.send(batch)

    def end(self) -> None:
        """End the process, whatever it does."""
        with contextlib.suppress(OSError, ValueError):
            self.process.kill()
            self.process.join(5)
            self.door.close()


def examined_by_many(how: Examination, entries: Iterable[Numbered], jobs: int) -> Generator[tuple[int, Facts], None, None]:
    """Samples with what was seen of them, in the order in which they are done."""
    waiting = _batches(entries)
    started = [_Worker(how) for _ in range(jobs)]
    busy = [worker for worker in started if _next(worker, waiting)]
    try:
        while busy:
            wait([worker.door for worker in busy], timeout=1.0)
            for worker in list(busy):
                yield from _heard(worker)
                if worker.batch and _is_lost(worker):
                    yield from _heard(worker)  # it may have answered just before
                    yield from _instead_of(worker, how)
                    busy.remove(worker)
                    if worker.batch:
                        busy.append(_Worker(how))
                        started.append(busy[-1])
                        busy[-1].give(worker.batch)
            busy = [worker for worker in busy if worker.batch or _next(worker, waiting)]
        for batch in waiting:  # no process could be started
            yield from ((number, examine(how, entry)) for number, entry in batch)
    finally:
        for worker in started:
            worker.end()


def _batches(entries: Iterable[Numbered]) -> Iterator[list[Numbered]]:
    batch: list[Numbered] = []
    for one in entries:
        batch.append(one)
        if len(batch) == _AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _next(worker: _Worker, waiting: Iterator[list[Numbered]]) -> bool:
    batch = next(waiting, None)
    if batch:
        worker.give(batch)
    return bool(batch)


def _heard(worker: _Worker) -> Iterator[tuple[int, Facts]]:
    """The answers of a worker's batch, where they are there."""
    try:
        if worker.batch and worker.door.poll():
            answers: list[tuple[int, Facts]] = worker.door.recv()
            worker.batch = []
            yield from answers
    except (EOFError, OSError):
        return


def _is_lost(worker: _Worker) -> bool:
    """Dead, or silent for too long, with no answer in the door. A closed door looks like one with something in it."""
    if not worker.process.is_alive():
        return True
    return worker.silent > _PATIENCE and not worker.door.poll()


def _instead_of(worker: _Worker, how: Examination) -> Iterator[tuple[int, Facts]]:
    """What a lost worker leaves behind: the sample that it was lost on. The rest stays in its batch, for another one.

    One that never began a sample was not ended by one: where processes cannot be started (a script from a pipe, some notebooks),
    the work is done here.
    """
    crashed = not worker.process.is_alive()
    worker.end()
    if worker.at < 0:
        batch, worker.batch = worker.batch, []
        yield from ((number, examine(how, entry)) for number, entry in batch)
        return
    entry = dict(worker.batch).get(worker.at)
    if entry is not None:
        said = f"the decoder crashed on it (exit {worker.process.exitcode})" if crashed else f"no answer within {_PATIENCE:.0f} s"
        worker.batch = [one for one in worker.batch if one[0] != worker.at]
        yield worker.at, Facts(faults=(Fault("image-unreadable", entry.image, 0, said),))


_FEW = 48  # samples for which no process is started
_KEEP_EVERY = 1.0  # seconds
Progress = Callable[[int, int], None]


def scan(
    data: ImageSet,
    cache: Cache,
    *,
    jobs: int = 0,
    quick: bool = False,
    pixels: bool = False,
    masks: bool = True,
    boxes: bool = False,
    progress: Progress | None = None,
) -> Generator[tuple[Entry, Facts], None, None]:
    """Each sample with its facts, in the order of the set; those that are remembered are not looked at again.

    `jobs` 0: a process for each core that may be used. The other options are those of `Examination`.
    """
    classes = frozenset(data.classes) if data.classes_are_known else None
    how = Examination(
        root=data.root, read_label=data.read_label, classes=classes, has_boxes=data.has_boxes,
        quick=quick, pixels=pixels, masks=masks, boxes=boxes,
    )  # fmt: skip
    todo = _changed(data, cache) if cache.remembers else list(range(len(data.entries)))
    examined = _examined(data, todo, how, jobs or _cores())
    with contextlib.closing(_kept(data, cache, examined)) as kept:
        yield from _all(data, cache, how, todo, _in_order(kept, todo), progress)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _all(
    data: ImageSet, cache: Cache, how: Examination, todo: list[int], fresh: Iterator[Facts], progress: Progress | None
) -> Iterator[tuple[Entry, Facts]]:
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
        yield entry, facts_from(row) if row else examine(how, entry)


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


def _in_order(examined: Iterator[tuple[int, Facts]], order: list[int]) -> Iterator[Facts]:
    """What was seen, in the order of the set; what is done too early waits."""
    early: dict[int, Facts] = {}
    for number in order:
        while number not in early:
            done, seen = next(examined)
            early[done] = seen
        yield early.pop(number)


def _examined(data: ImageSet, todo: list[int], how: Examination, processes: int) -> Generator[tuple[int, Facts], None, None]:
    if processes == 1 or len(todo) <= _FEW:
        return ((number, examine(how, data.entries[number])) for number in todo)
    return examined_by_many(how, ((number, data.entries[number]) for number in todo), processes)


def _kept(
    data: ImageSet, cache: Cache, examined: Generator[tuple[int, Facts], None, None]
) -> Generator[tuple[int, Facts], None, None]:
    """Pass on what is seen, and put them into the cache about once a second and at the end, however that comes."""
    if not cache.remembers:
        with contextlib.closing(examined):
            yield from examined
        return
    fresh: list[tuple[int, Facts]] = []
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


def _keep(data: ImageSet, cache: Cache, fresh: list[tuple[int, Facts]]) -> None:
    stamp, entries = _stamps(data), ((data.entries[number], seen) for number, seen in fresh)
    cache.keep_facts((_name(entry), stamp(entry), seen) for entry, seen in entries)
