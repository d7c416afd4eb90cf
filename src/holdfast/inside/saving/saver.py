"""Save a training's state behind its back: the training waits for a copy into memory that is used again, a thread does the rest.

From a GPU the copies run in the training's own stream and the host does not wait for them: whatever the script does next to its
tensors comes after them, in order, on the device. One save is under way at a time; the next one waits for it, or is left out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoints import spare
from holdfast.checkpoints.manifest import Names, kept_in
from holdfast.checkpoints.read import read_checkpoint, verify_checkpoint
from holdfast.checkpoints.retain import best_of, retain
from holdfast.checkpoints.write import best_checkpoint, mark_best, named_tensors, write_checkpoint
from holdfast.errors import StorageError
from holdfast.inside.helper import Helper
from holdfast.inside.pulse import PULSE
from holdfast.inside.saving import at_exit
from holdfast.inside.saving.board import Board
from holdfast.inside.saving.host_state import HostMemory, HostState, as_numbers, metrics_now
from holdfast.inside.saving.parts import to_parts
from holdfast.inside.saving.telling import Telling
from holdfast.inside.snapshots.state import TrainingState
from holdfast.signals.pulse import SAVING

_STUCK = 60.0  # seconds in which nothing was written, after which the end of the process no longer waits
_NAMED = 5  # bad tensors that a finding names


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Which checkpoints stay, and which is the best."""

    last: int = 3
    every_epochs: int | None = 5
    best: str | None = None
    lower_is_better: bool = True
    made_by: str = "store"


@dataclass(slots=True, eq=False)
class Job:
    """One save under way."""

    step: int
    path: Path  # where it will be, or is
    facts: dict[str, Any]
    state: HostState | None
    done: threading.Event = field(default_factory=threading.Event)
    saved: bool = False


class Saver:
    """Copies states and has them written, one at a time."""

    def __init__(self, folder: Path, *, keeping: Keeping, telling: Telling, drop: bool = False) -> None:
        self.folder, self.keeping, self.telling = folder, keeping, telling
        self._drop = drop
        self.board: Board | None = None  # where other ranks leave what belongs into a checkpoint
        self.begin_again()

    def begin_again(self) -> None:
        """Nothing is under way; so in a forked child, to which the thread does not come along."""
        self._memory, self.names = HostMemory(), Names(self.folder)
        self._helper = Helper("holdfast-saving", on_trouble=lambda _, error: self.telling.failed(error, None))
        self._job: Job | None = None
        self._moved_at = 0.0

    def save(self, state: TrainingState, step: int | None, facts: Mapping[str, Any], also: Mapping[str, Any]) -> Job | None:
        """Copy the state and have it written; None if the save before is still under way and this one is left out."""
        before = self._job
        if before is not None and not before.done.is_set():
            if self._drop:
                return None
            with PULSE.during(SAVING):
                self._wait_while_it_moves()
            if not before.done.is_set():
                raise StorageError(
                    f"The save of step {before.step} is stuck: nothing was written for {_STUCK:.0f} seconds.",
                    fix="look whether the disk of the folder answers",
                )
        with torch.no_grad():
            metrics = metrics_now(facts["metrics"])
            step, path = self.names.foretell(step)
            copy = self._memory.copy(state.read({"step": step, "epoch": facts["epoch"], **also}))
        job = self._job = Job(step, path, {**facts, "metrics": metrics}, copy)
        self._moved()
        at_exit.finish(self)
        self._helper.later(lambda: self._work(job))
        if copy.own:  # the training's own memory is being written
            with PULSE.during(SAVING):
                job.done.wait()
        return job

    def make_ready(self, state: TrainingState) -> None:
        """Have the memory for saving this state made beside the training."""
        self._memory.make(state.read(), self._helper.later)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is under way; False if that takes longer than `timeout` seconds."""
        return self._job is None or self._job.done.wait(timeout)

    def wait_at_exit(self) -> None:
        """Wait for the save under way, as long as it gets on."""
        self._wait_while_it_moves()

    def close(self) -> None:
        """Finish what is under way and give the memory back."""
        self._wait_while_it_moves()
        self._helper.close()
        if self.wait(0.0):
            self._memory.release()

    def _wait_while_it_moves(self) -> None:
        while not self.wait(1.0) and time.monotonic() - self._moved_at < _STUCK:
            pass

    # In the helper thread

    def _work(self, job: Job) -> None:
        try:
            self._carry_out(job)
        except Exception as error:  # noqa: BLE001 - the training goes on, and a finding says what happened
            self.telling.failed(error, job.step)
        finally:
            self.names.look()
            job.state = None
            job.done.set()

    def _carry_out(self, job: Job) -> None:
        assert job.state is not None
        job.state.arrive()
        job.facts["metrics"] = as_numbers(job.facts["metrics"])
        if self.board is not None and (others := self.board.collect(job.step)):
            job.state.tree["ranks"] = others
        parts = to_parts(job.state.tree, job.state.hosts)
        if bad := job.state.non_finite():
            self._tell_bad(job, bad, parts)
            return
        self._write(job, parts)
        self.telling.saved(job.path, job.step, metrics=job.facts["metrics"])
        self._tidy_up(job.path)

    def _write(self, job: Job, parts: Mapping[str, Any]) -> None:
        """Write it, and read it back."""
        assert job.state is not None
        job.path = write_checkpoint(self.folder, job.step, parts, size=job.state.size, moved=self._moved, **job.facts)
        self._read_back(job.path)
        job.saved = True

    def _read_back(self, path: Path) -> None:
        try:
            verify_checkpoint(path, from_disk=True, moved=self._moved)
            read_checkpoint(path, verify=False)  # what cannot be loaded is no checkpoint
        except StorageError:
            spare.remove(path)
            raise

    def _tidy_up(self, verified: Path) -> None:
        """Mark the best, and let those go that need not stay; `verified` is whole."""
        keeping = self.keeping
        try:
            if keeping.best is not None:
                best = best_of(kept_in(self.folder), keeping.best, lower_is_better=keeping.lower_is_better)
                if best is not None and best.path != best_checkpoint(self.folder):
                    mark_best(best.path, best.metrics[keeping.best], keeping.best)
            retain(
                self.folder,
                verified=verified,
                keep_last=keeping.last,
                every_epochs=keeping.every_epochs,
                made_by=keeping.made_by,
            )
        except OSError as error:
            self.telling.failed(error, None, code="holdfast-degraded", what="removing old checkpoints")

    def _tell_bad(self, job: Job, bad: Mapping[int, int], parts: Mapping[str, Any]) -> None:
        """The state is not fit to be saved: say which tensors are bad."""
        assert job.state is not None
        names = {id(tensor): name for content in parts.values() for name, tensor in named_tensors(content)}
        rows = [{"name": names.get(id(job.state.hosts[n]), "?"), "non_finite": count} for n, count in bad.items()]
        words = f"The state of step {job.step} was not saved: {len(rows)} tensors hold NaN or Inf, first {rows[0]['name']}."
        error = StorageError(words, fix="go back to the newest clean checkpoint: store.restore(model=..., optimizer=...)")
        self.telling.failed(error, job.step, code="checkpoint-non-finite", bad_tensors=len(rows), tensors=rows[:_NAMED])

    def _moved(self) -> None:
        self._moved_at = time.monotonic()
