"""Processes that examine samples. One that dies or hangs on a file is replaced, and the file is named.

Decoders are written in C and meet damaged files here; a crash or an endless loop in one must not end the scan.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import time
import warnings
from collections.abc import Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, TypeVar

from holdfast.data.checks.image_whole import UNREADABLE
from holdfast.data.problem import Fault
from holdfast.data.samples import Entry

_AT_ONCE = 32  # samples that are handed over together
_PATIENCE = 60.0  # seconds for one sample
Numbered = tuple[int, Entry]
Seen = TypeVar("Seen")
Seen_co = TypeVar("Seen_co", covariant=True)


class Looking(Protocol[Seen_co]):
    """How every sample is looked at; it is sent to each process once."""

    def look(self, entry: Entry) -> Seen_co:
        """All that is wanted of one sample, as a tuple that JSON can hold. Never raises."""

    def lost(self, fault: Fault) -> Seen_co:
        """What is known of a sample on which a process was lost."""

    def remembered(self, row: list[Any]) -> Seen_co:
        """The same from what JSON made of it."""


def _work(how: Looking[Any], door: Connection, at: Any) -> None:
    """What runs in each process. `at` is shared memory: it says which sample a death belongs to."""
    warnings.simplefilter("ignore")  # decoders warn about odd files in words of their own
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        while True:
            batch: list[Numbered] = door.recv()
            answers = []
            for number, entry in batch:
                at.value = number
                answers.append((number, how.look(entry)))
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

    def __init__(self, how: Looking[Any]) -> None:
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


def examined_by_many(how: Looking[Seen], entries: Iterable[Numbered], jobs: int) -> Generator[tuple[int, Seen], None, None]:
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
            yield from ((number, how.look(entry)) for number, entry in batch)
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


def _heard(worker: _Worker) -> Iterator[tuple[int, Any]]:
    """The answers of a worker's batch, where they are there."""
    try:
        if worker.batch and worker.door.poll():
            answers: list[tuple[int, Any]] = worker.door.recv()
            worker.batch = []
            yield from answers
    except (EOFError, OSError):
        return


def _is_lost(worker: _Worker) -> bool:
    """Dead, or silent for too long, with no answer in the door. A closed door looks like one with something in it."""
    if not worker.process.is_alive():
        return True
    return worker.silent > _PATIENCE and not worker.door.poll()


def _instead_of(worker: _Worker, how: Looking[Seen]) -> Iterator[tuple[int, Seen]]:
    """What a lost worker leaves behind: the sample that it was lost on. The rest stays in its batch, for another one.

    One that never began a sample was not ended by one: where processes cannot be started (a script from a pipe, some notebooks),
    the work is done here.
    """
    crashed = not worker.process.is_alive()
    worker.end()
    if worker.at < 0:
        batch, worker.batch = worker.batch, []
        yield from ((number, how.look(entry)) for number, entry in batch)
        return
    entry = dict(worker.batch).get(worker.at)
    if entry is not None:
        said = f"the decoder crashed on it (exit {worker.process.exitcode})" if crashed else f"no answer within {_PATIENCE:.0f} s"
        worker.batch = [one for one in worker.batch if one[0] != worker.at]
        yield worker.at, how.lost(Fault(UNREADABLE.code, entry.image, 0, said))
