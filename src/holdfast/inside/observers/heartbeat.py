"""The pulse of this process: a few numbers in shared memory that say what it is doing, for whoever watches from outside.

    beat                 something was seen of the training: a batch, a backward pass, an update
    phase                training, drawing a batch, evaluating, saving, loading, a collective, paused

Until there is a file to write to, the numbers go into memory of this process alone, so that nobody has to ask.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.signals.pulse import (
    CELL_BEATS,
    CELL_EVALUATION,
    CELL_MAGIC,
    CELL_PHASE,
    CELL_PID,
    CELL_SINCE,
    CELL_STEPS,
    DRAWING,
    EVALUATING,
    MAGIC,
    NAME,
    SIZE,
    STARTING,
    STARTS,
    TRAINING,
    make_file,
)
from holdfast.signals.run_folder import RunFolder

NOBODYS = -1


class Heartbeat:
    """Writes the pulse. `cells` are whole numbers; the two that are seconds are in `seconds`, in the same places."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self.shown = False
        self._thread = threading.main_thread().ident  # the one that trains
        self._use(memoryview(bytearray(SIZE)))

    def _use(self, memory: memoryview) -> None:
        self._memory = memory
        self.cells, self.seconds = memory.cast("B").cast("q"), memory.cast("B").cast("d")
        self.cells[CELL_MAGIC], self.cells[CELL_PID] = MAGIC, os.getpid()
        self._beats, self._phase = self.cells[CELL_BEATS], self.cells[CELL_PHASE]  # reading the memory costs more than writing

    @property
    def beats(self) -> int:
        """How much was seen of the training; a number that only grows."""
        return self._beats

    @property
    def thread(self) -> int:
        """The thread that trains."""
        return self._thread or 0

    # What the training does

    def beat(self) -> None:
        """Something was seen of the training."""
        self._beats = beats = self._beats + 1
        self.cells[CELL_BEATS] = beats

    def enter(self, phase: int) -> int:
        """A phase begins; the one before it, for `leave`. What another thread does beside the training is no phase of it."""
        if threading.get_ident() != self._thread:
            return NOBODYS
        before, self._phase = self._phase, phase
        self.cells[CELL_PHASE] = phase
        self.beat()
        self.seconds[CELL_SINCE] = time.time()
        return before

    def leave(self, before: int) -> None:
        """The phase is over; go on with the one that it came out of."""
        if before != NOBODYS:
            self.enter(before)

    @contextlib.contextmanager
    def during(self, phase: int) -> Iterator[None]:
        """A phase with a beginning and an end."""
        before = self.enter(phase)
        try:
            yield
        finally:
            self.leave(before)

    def drawing(self) -> None:
        """The training asks its loader for a batch."""
        if self._phase <= TRAINING:
            self._phase = self.cells[CELL_PHASE] = DRAWING

    def drawn(self) -> None:
        """It has got one."""
        self._beats = beats = self._beats + 1
        self.cells[CELL_BEATS] = beats
        if self._phase == DRAWING:
            self._phase = self.cells[CELL_PHASE] = TRAINING

    def stepped(self, steps: int) -> None:
        """A step is done."""
        cells, self._beats = self.cells, self._beats + 1
        cells[CELL_STEPS], cells[CELL_BEATS] = steps, self._beats
        if self._phase != TRAINING:
            self._phase = cells[CELL_PHASE] = TRAINING

    def evaluation_begins(self) -> None:
        """An evaluation begins, unless one is under way."""
        if self._phase != EVALUATING:
            self.enter(EVALUATING)

    def evaluation_ends(self) -> None:
        """It is over; how long the longest was is kept."""
        if self._phase == EVALUATING:
            passed = time.time() - self.seconds[CELL_SINCE]
            self.seconds[CELL_EVALUATION] = max(passed, self.seconds[CELL_EVALUATION])
            self.enter(TRAINING)

    # Where it is written

    def show_start(self, run: RunFolder) -> None:
        """Write from now on where those are listed that have not made a step yet. A folder that cannot be written: nowhere."""
        if not self.shown:
            self.shown, self._thread = True, threading.get_ident()
            with contextlib.suppress(OSError):
                folder = run.path / STARTING
                folder.mkdir(exist_ok=True)
                self._write_to(folder / str(os.getpid()))

    def show_in(self, recording: Path) -> None:
        """Write into the folder of a training that begins now; the file of the one before moves there. Raises OSError."""
        self.shown, self._thread = True, threading.get_ident()
        if self._phase in (STARTS, DRAWING):
            self._phase = self.cells[CELL_PHASE] = TRAINING
        target = recording / NAME
        if self._path is None:
            self._write_to(target)
        else:
            self._path.rename(target)
            self._path = target

    def after_fork(self) -> None:
        """In a forked child: the file is the parent's."""
        self.__init__()  # type: ignore[misc]

    def _write_to(self, path: Path) -> None:
        memory = make_file(path, bytes(self._memory))
        self._path = path
        self._use(memoryview(memory))


HEARTBEAT = Heartbeat()
