"""Examine all samples of image data: those that changed since the last time, on all cores, in bounded memory.

What is done is kept in the cache as it comes, so Ctrl-C loses nothing: the next run continues from there. Decoders are written
in C and meet damaged files here: a process that dies or hangs on one is replaced, and the file is named.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any

from holdfast.data.cache import Cache
from holdfast.data.examine import Examination, Numbered, examine, examine_many, stamps
from holdfast.data.problem import Fault
from holdfast.data.samples import Entry, Facts, ImageSet, facts_from

_AT_ONCE = 32  # samples that are handed over together
_PATIENCE = 60.0  # seconds for one sample
_FEW = 48  # samples for which no process is started
_KEEP_EVERY = 0.1  # seconds; all at once would leave the processes without work for as long as it takes
Examined = Generator[tuple[int, Facts], None, None]
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
    how = Examination(
        root=data.root, read_label=data.read_label, classes=frozenset(data.classes) if data.classes_are_known else None,
        has_boxes=data.has_boxes, quick=quick, pixels=pixels, masks=masks, boxes=boxes,
    )  # fmt: skip
    jobs = jobs or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    judged_by, remembered = data.judged_by, cache.stamps()

    def stamp(entry: Entry) -> str:  # what a sample is made of, and judged by: a class that is listed now was out of range before
        return f"{stamps(entry, data.listing.files)} {judged_by}"

    changed = bytearray((before := remembered.get(_name(entry))) is None or before != stamp(entry) for entry in data.entries)
    todo = ((number, entry) for number, entry in enumerate(data.entries) if changed[number])
    many = jobs > 1 and sum(changed) > _FEW
    examined = examined_by_many(how, todo, jobs) if many else _examined_here(how, todo)
    done, early = len(changed) - sum(changed), dict[int, Facts]()
    with contextlib.closing(_kept(data.entries, cache, stamp, examined)) as kept:
        for number, entry in enumerate(data.entries):
            if not changed[number]:
                row = cache.facts_of(_name(entry))
                yield entry, facts_from(row) if row else examine(how, entry)
                continue
            while number not in early:  # what is done too early waits
                early.update([next(kept)])
            yield entry, early.pop(number)
            done += 1
            if progress:
                progress(done, len(data.entries))


def _name(entry: Entry) -> str:
    """What a sample is called in the cache, which takes UTF-8 only."""
    return f"{entry.split}/{entry.image}".encode("utf-8", "backslashreplace").decode()


def _kept(entries: list[Entry], cache: Cache, stamp: Callable[[Entry], str], examined: Examined) -> Examined:
    """Pass on what is seen, and put it into the cache a few times a second and at the end, however that comes."""
    fresh: list[tuple[Entry, Facts]] = []

    def keep() -> None:
        cache.keep_facts((_name(entry), stamp(entry), facts) for entry, facts in fresh)

    last = time.monotonic()
    try:
        for number, facts in examined:
            fresh.append((entries[number], facts))
            yield number, facts
            if time.monotonic() - last > _KEEP_EVERY:
                keep()
                fresh, last = [], time.monotonic()
    finally:
        examined.close()
        keep()


def _examined_here(how: Examination, entries: Iterator[Numbered]) -> Examined:
    while batch := list(islice(entries, _AT_ONCE)):
        yield from examine_many(how, batch)


def examined_by_many(how: Examination, entries: Iterable[Numbered], jobs: int) -> Examined:
    """Samples with what was seen of them, in the order in which they are done."""
    samples = iter(entries)
    waiting = iter(lambda: list(islice(samples, _AT_ONCE)), [])
    started = [_Worker(how) for _ in range(jobs)]
    busy = [worker for worker in started if worker.give(next(waiting, []))]
    try:
        while busy:
            wait([worker.pipe for worker in busy], timeout=1.0)
            for place, worker in enumerate(busy):
                if answers := worker.answers():
                    worker.give(next(waiting, []))  # first: it works on while these are used
                    yield from answers
                elif worker.is_lost():
                    yield from worker.answers()  # it may have answered just before
                    yield from worker.given_up(how)
                    if worker.at >= 0 and (batch := worker.batch or next(waiting, [])):
                        started.append(_Worker(how))
                        busy[place] = started[-1]
                        busy[place].give(batch)
            busy = [worker for worker in busy if worker.alive and worker.batch]
        for batch in waiting:  # no process could be started
            yield from examine_many(how, batch)
    finally:
        for worker in started:
            worker.end()


class _Worker:
    """One process, what it was given, and which sample it is at."""

    def __init__(self, how: Examination) -> None:
        context: Any = multiprocessing.get_context(_start_method())
        self.pipe, theirs = multiprocessing.Pipe()
        self._at = context.RawValue("q", -1)
        self._process = context.Process(target=_work, args=(how, theirs, self._at), daemon=True)
        with _deaf_to_ctrl_c(), _without_the_script(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of NumPy's threads, which no worker needs
            self._process.start()
        theirs.close()
        self.alive = True
        self.batch: list[Numbered] = []
        self._seen, self._since = -1, time.monotonic()

    @property
    def at(self) -> int:
        """The sample that it is at, or was at last; -1 where it never began one."""
        return int(self._at.value)

    def give(self, batch: list[Numbered]) -> bool:
        """Hand over samples; false where there are none left."""
        self.batch, self._since = batch, time.monotonic()
        with contextlib.suppress(OSError):
            if batch:
                self.pipe.send(batch)
        return bool(batch)

    def answers(self) -> list[tuple[int, Facts]]:
        """The answers of its batch, where they are there."""
        with contextlib.suppress(EOFError, OSError):
            if self.batch and self.pipe.poll():
                answers: list[tuple[int, Facts]] = self.pipe.recv()
                self.batch = []
                return answers
        return []

    def is_lost(self) -> bool:
        """Dead, or silent for too long, with no answer in the pipe. A closed pipe looks like one with something in it."""
        if self.at != self._seen:
            self._seen, self._since = self.at, time.monotonic()
        return not self._process.is_alive() or (time.monotonic() - self._since > _PATIENCE and not self.pipe.poll())

    def given_up(self, how: Examination) -> Iterator[tuple[int, Facts]]:
        """What a lost one leaves behind: the sample that it was lost on. The rest stays in its batch, for another one.

        One that never began a sample was not ended by one: where processes cannot be started (a script from a pipe, some
        notebooks), the work is done here.
        """
        crashed, batch = not self._process.is_alive(), dict(self.batch)
        self.end()
        if self.at < 0:
            self.batch = []
            yield from examine_many(how, list(batch.items()))
        elif entry := batch.pop(self.at, None):
            reason = (
                f"the decoder crashed on it (exit {self._process.exitcode})" if crashed else f"no answer within {_PATIENCE:.0f} s"
            )
            self.batch = list(batch.items())
            yield self.at, Facts(faults=(Fault("image-unreadable", entry.image, 0, reason),))

    def end(self) -> None:
        """End the process, whatever it does."""
        self.alive = False
        with contextlib.suppress(OSError, ValueError):
            self._process.kill()
            self._process.join(5)
            self.pipe.close()


def _start_method() -> str:
    """`fork` saves the imports in each process, half a second; it is safe where nothing else runs: no thread, no torch (CUDA)."""
    alone = threading.active_count() == 1 and "torch" not in sys.modules
    return "fork" if sys.platform == "linux" and alone else "spawn"


def _work(how: Examination, pipe: Connection, at: Any) -> None:
    """What runs in each process. `at` is shared memory: it says which sample a death belongs to."""
    warnings.simplefilter("ignore")  # decoders warn about odd files in words of their own
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None
    with contextlib.suppress(EOFError, OSError):
        while pipe in wait([pipe, parent.sentinel]):  # a forked process holds both ends of its pipe, so that does not close
            pipe.send(examine_many(how, pipe.recv(), partial(setattr, at, "value")))


@contextlib.contextmanager
def _without_the_script() -> Iterator[None]:
    """What is started meanwhile does not import the user's script, which would run once more where it has no `__main__` guard."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


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
