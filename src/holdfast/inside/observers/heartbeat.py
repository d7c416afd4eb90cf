"""The heartbeat of this process: a few numbers in shared memory that tell the supervisor what the training is doing.

    beats                how many events were seen: batches, backward passes, updates
    phase                training, drawing a batch, evaluating, saving, loading, a collective, paused

Before there is a file, the numbers go to private memory, so that no caller has to check.
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

_OTHER_THREAD = -1


class Heartbeat:
    """Writes the heartbeat. `cells` holds integers; `seconds` views the same memory as floats, for the two times in it."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self.shown = False
        self._thread = threading.main_thread().ident  # the one that trains
        self._use(memoryview(bytearray(SIZE)))

    def _use(self, memory: memoryview) -> None:
        self._memory = memory
        self.cells, self.seconds = memory.cast("B").cast("q"), memory.cast("B").cast("d")
        self.cells[CELL_MAGIC], self.cells[CELL_PID] = MAGIC, os.getpid()
        self._beats, self._phase = self.cells[CELL_BEATS], self.cells[CELL_PHASE]  # cached: reads cost more than writes

    @property
    def beats(self) -> int:
        """The number of events so far; it only grows."""
        return self._beats

    @property
    def thread(self) -> int:
        """The thread that trains."""
        return self._thread or 0

    # Events of the training

    def beat(self) -> None:
        """Count an event of the training."""
        self._beats = beats = self._beats + 1
        self.cells[CELL_BEATS] = beats

    def enter(self, phase: int) -> int:
        """Enter a phase and return the outer one, for `leave`. Other threads than the training thread are ignored."""
        if threading.get_ident() != self._thread:
            return _OTHER_THREAD
        outer, self._phase = self._phase, phase
        self.cells[CELL_PHASE] = phase
        self.beat()
        self.seconds[CELL_SINCE] = time.time()
        return outer

    def leave(self, outer: int) -> None:
        """Return to the outer phase."""
        if outer != _OTHER_THREAD:
            self.enter(outer)

    @contextlib.contextmanager
    def during(self, phase: int) -> Iterator[None]:
        """Be in a phase for the length of a `with` block."""
        outer = self.enter(phase)
        try:
            yield
        finally:
            self.leave(outer)

    def drawing(self) -> None:
        """The training requests a batch from its loader."""
        if self._phase <= TRAINING:
            self._phase = self.cells[CELL_PHASE] = DRAWING

    def drawn(self) -> None:
        """The batch has arrived."""
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
        """Enter the evaluation phase, unless it is open already."""
        if self._phase != EVALUATING:
            self.enter(EVALUATING)

    def evaluation_ends(self) -> None:
        """Leave the evaluation phase; the longest duration is kept."""
        if self._phase == EVALUATING:
            duration = time.time() - self.seconds[CELL_SINCE]
            self.seconds[CELL_EVALUATION] = max(duration, self.seconds[CELL_EVALUATION])
            self.enter(TRAINING)

    # The file

    def show_start(self, run: RunFolder) -> None:
        """Write to the run's list of processes without a step yet; skipped where the folder is not writable."""
        if not self.shown:
            self.shown, self._thread = True, threading.get_ident()
            with contextlib.suppress(OSError):
                folder = run.path / STARTING
                folder.mkdir(exist_ok=True)
                self._write_to(folder / str(os.getpid()))

    def show_in(self, recording: Path) -> None:
        """Write into the folder of a new training; an earlier file is moved there. Raises OSError."""
        self.shown, self._thread, self.cells[CELL_STEPS] = True, threading.get_ident(), 0  # not those of the training before
        if self._phase in (STARTS, DRAWING):
            self._phase = self.cells[CELL_PHASE] = TRAINING
        target = recording / NAME
        if self._path is None:
            self._write_to(target)
        else:
            self._path.rename(target)
            self._path = target

    def after_fork(self) -> None:
        """In a forked child: start over, the file belongs to the parent."""
        self.__init__()  # type: ignore[misc]

    def _write_to(self, path: Path) -> None:
        memory = make_file(path, bytes(self._memory))
        self._path = path
        self._use(memoryview(memory))


HEARTBEAT = Heartbeat()
