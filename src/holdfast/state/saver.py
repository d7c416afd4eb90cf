"""Save a training's state in the background: the training waits for a copy in host memory, a thread does the rest.

One save is in progress at a time; the next one waits for it.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from holdfast import units
from holdfast.checkpoints.manifest import Names, kept_in
from holdfast.checkpoints.retain import best_of, retain
from holdfast.checkpoints.write import best_checkpoint, mark_best
from holdfast.errors import StorageError
from holdfast.state.background import BackgroundThread
from holdfast.state.checkpoint_parts import NonFinite, write_whole
from holdfast.state.host_copy import Block, HostCopy, LiveState, available_memory, copy_state
from holdfast.state.ranks import RankNotes, world_size
from holdfast.state.report import SaveReport, while_saving
from holdfast.state.sharded import write_sharded
from holdfast.state.training_state import TrainingState

_STUCK = 60.0  # seconds without anything written, after which a save counts as stuck
_MAX_NAMED = 5  # non-finite tensors in a finding
_RESERVE = 0.1  # fraction of the available memory that a copy leaves free


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which checkpoints are kept, and which is the best."""

    last: int = 3
    every_epochs: int | None = 5
    best: str | None = None
    lower_is_better: bool = True
    made_by: str = "store"


@dataclass(slots=True, eq=False)
class Job:
    """One save in progress."""

    step: int
    path: Path  # of the checkpoint, once written
    facts: dict[str, Any]
    write: Callable[[Job], None] | None  # holds the copied state
    done: threading.Event = field(default_factory=threading.Event)
    saved: bool = False
    process: int = field(default_factory=os.getpid)


class Saver:
    """Copies states and writes them in the background, one at a time.

    A sharded state is saved by every rank; an early one waits for the save before.
    """

    def __init__(self, folder: Path, *, retention: Retention, report: SaveReport, notes: RankNotes) -> None:
        self.folder, self.retention, self.report, self.names = folder, retention, report, Names(folder)
        self._notes = notes
        self._block: Block | None = None
        self._thread = BackgroundThread("holdfast-saving", on_error=lambda _, error: report.failed(error, None))
        self._job: Job | None = None
        self._moved_at = 0.0

    def save(self, state: TrainingState, step: int | None, facts: Mapping[str, Any], also: Mapping[str, Any]) -> Job:
        """Copy the state and write it in the background."""
        sharded = state.is_sharded()
        if (before := self._in_progress()) is not None:
            with while_saving():
                self.wait_unless_stuck()
            if not before.done.is_set():
                raise StorageError(
                    f"The save of step {before.step} is stuck: nothing was written for {_STUCK:.0f} seconds.",
                    fix="check whether the disk of the folder answers",
                )
        if not self._notes.connect() and sharded and world_size() > 1:
            raise StorageError("torch.distributed has no store: the ranks cannot save together.", fix="use NCCL or gloo")
        with torch.no_grad():
            metrics = {name: _detached(value) for name, value in facts["metrics"].items()}
            step, path = self.names.foretell(step)
            live_state = state.read({"step": step, "epoch": facts["epoch"], **also})
            copy = copy_state(live_state, self._block_for(live_state))
        kind = {"sharded": sharded, "by_rank": state.is_flattened()}
        job = self._job = Job(step, path, {**facts, "metrics": metrics}, lambda job: self._write(job, copy, **kind))
        self._moved()
        _finish_at_exit(self)
        self._thread.submit(lambda: self._work(job))
        if copy.block is None:  # the training's own memory is being written
            with while_saving():
                job.done.wait()
        return job

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no save is in progress; False after `timeout` seconds."""
        job = self._in_progress()
        return job is None or job.done.wait(timeout)

    def wait_unless_stuck(self) -> None:
        """Wait for the save in progress, unless it is stuck."""
        while not self.wait(1.0) and time.monotonic() - self._moved_at < _STUCK:
            pass

    def close(self) -> None:
        """Finish the save in progress and release the memory."""
        self.wait_unless_stuck()
        self._thread.close()
        if self.wait(0.0) and self._block is not None:
            self._block.release()
            self._block = None

    def _in_progress(self) -> Job | None:
        """The save in progress; none in a forked child, which has no thread."""
        job = self._job
        return job if job is not None and not job.done.is_set() and job.process == os.getpid() else None

    def _block_for(self, live_state: LiveState) -> Block | None:
        """The reused block, or a larger one; None if memory is short."""
        size = live_state.size
        if self._block is not None and self._block.process != os.getpid():
            self._block = None
        if self._block is not None and self._block.size < size:
            self._block.release()
            self._block = None
        if self._block is None and size < (1.0 - _RESERVE) * available_memory():
            with contextlib.suppress(MemoryError):
                self._block = Block(size, pinned=live_state.on_gpu)
        if self._block is None and live_state.on_gpu:
            raise StorageError(f"There is no host memory for a copy of {units.size(size)}.", fix="free some host memory")
        return self._block

    # In the background

    def _work(self, job: Job) -> None:
        try:
            job.facts["metrics"] = {str(name): _as_number(value) for name, value in job.facts["metrics"].items()}
            assert job.write is not None
            job.write(job)
        except NonFinite as error:
            rows = error.tensors
            self.report.failed(error, job.step, code="checkpoint-non-finite", bad_tensors=len(rows), tensors=rows[:_MAX_NAMED])
        except Exception as error:  # noqa: BLE001 - training continues, and a finding has the error
            self.report.failed(error, job.step)
        finally:
            self.names.look()
            job.write = None
            job.done.set()

    def _write(self, job: Job, copy: HostCopy, *, sharded: bool, by_rank: bool) -> None:
        copy.wait()
        if sharded:
            job.step, job.path = write_sharded(
                self.folder, job.step, copy, self._notes, by_rank=by_rank, moved=self._moved, **job.facts
            )
        else:
            if others := self._notes.collect(job.step):
                copy.tree["ranks"] = others
            job.path = write_whole(self.folder, job.step, copy, moved=self._moved, **job.facts)
        job.saved = True
        if not (sharded and self._notes.rank):
            self._saved(job)

    def _saved(self, job: Job) -> None:
        """Report the checkpoint, mark the best, and remove old ones."""
        self.report.saved(job.path, job.step, metrics=job.facts["metrics"])
        retention = self.retention
        try:
            if retention.best is not None:
                best = best_of(kept_in(self.folder), retention.best, lower_is_better=retention.lower_is_better)
                if best is not None and best.path != best_checkpoint(self.folder):
                    mark_best(best.path, best.metrics[retention.best], retention.best)
            last, epochs, made_by = retention.last, retention.every_epochs, retention.made_by
            retain(self.folder, verified=job.path, keep_last=last, every_epochs=epochs, made_by=made_by)
        except OSError as error:
            self.report.failed(error, None, code="holdfast-degraded", what="removing old checkpoints")

    def _moved(self) -> None:
        self._moved_at = time.monotonic()


def _detached(value: Any) -> Any:
    """The current value of a metric; one on a GPU is read later, in the background."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _as_number(value: Any) -> float | None:
    """A metric for the manifest; None if it is not a finite number."""
    try:
        return float(value) if math.isfinite(value) else None
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


# At the end of the process


_savers: weakref.WeakSet[Saver] = weakref.WeakSet()
_registered_in = 0  # process id


def _finish_at_exit(saver: Saver) -> None:
    global _registered_in
    if _registered_in == 0:
        atexit.register(_finish_all)
    elif _registered_in != os.getpid() and (util := sys.modules.get("multiprocessing.util")) is not None:
        util.Finalize(None, _finish_all, exitpriority=0)  # multiprocessing ends forked children without `atexit`
    _registered_in = os.getpid()
    _savers.add(saver)


def _finish_all() -> None:
    for saver in list(_savers):  # in a forked child, the parent's savers have nothing in progress
        with contextlib.suppress(Exception):
            saver.wait_unless_stuck()
