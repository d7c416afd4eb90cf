"""Save a training's state in the background: the training waits for a copy in host memory, a thread does the rest.

One save is in progress at a time; the next one waits for it, or is dropped.
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
from functools import partial
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoints import spare
from holdfast.checkpoints.manifest import Names, kept_in
from holdfast.checkpoints.read import read_checkpoint, verify_checkpoint
from holdfast.checkpoints.retain import best_of, retain
from holdfast.checkpoints.write import (
    begin_checkpoint,
    best_checkpoint,
    finish_checkpoint,
    mark_best,
    named_tensors,
    sync_folder,
    write_checkpoint,
)
from holdfast.errors import StorageError
from holdfast.state.background import Helper
from holdfast.state.checkpoint_parts import to_parts
from holdfast.state.host_copy import Block, HostCopier, HostCopy, LiveState, available_memory
from holdfast.state.ranks import RankNotes, SaveGroup, finish_before_groups_end
from holdfast.state.report import SaveReport, while_saving
from holdfast.state.sharded import SHARDS, files_of, name_tensors, training_part, write_shards
from holdfast.state.training_state import TrainingState
from holdfast.state.values import Ref, Tree, unflatten

_STUCK = 60.0  # seconds in which nothing was written, after which nobody waits any longer
_NAMED = 5  # non-finite tensors that a finding names
_RESERVE = 0.1  # of the available memory that a copy leaves
_PER_RANK = ("randomness", "loader")


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
    path: Path  # where it will be, or is
    facts: dict[str, Any]
    copy: HostCopy | None
    done: threading.Event = field(default_factory=threading.Event)
    saved: bool = False
    process: int = field(default_factory=os.getpid)


class NonFinite(StorageError):
    """A state with NaN or Inf, which is not saved."""

    def __init__(self, step: int, tensors: list[dict[str, Any]]) -> None:
        first = tensors[0]["name"] + (f" on rank {tensors[0]['rank']}" if "rank" in tensors[0] else "")
        super().__init__(
            f"The state of step {step} was not saved: {len(tensors)} tensors hold NaN or Inf, first {first}.",
            fix="go back to the newest clean checkpoint: store.restore(model=..., optimizer=...)",
        )
        self.tensors = tensors


class Saver:
    """Copies states and has them written, one at a time."""

    def __init__(
        self, folder: Path, *, retention: Retention, report: SaveReport, notes: RankNotes | None = None, drop: bool = False
    ) -> None:
        """With `notes` the other ranks' own state goes into the checkpoint."""
        self.folder, self.retention, self.report, self.names = folder, retention, report, Names(folder)
        self._notes, self._drop = notes, drop
        self._copier, self._block = HostCopier(), None  # type: tuple[HostCopier, Block | None]
        self._helper = Helper("holdfast-saving", on_trouble=lambda _, error: report.failed(error, None))
        self._job: Job | None = None
        self._moved_at = 0.0

    def save(self, state: TrainingState, step: int | None, facts: Mapping[str, Any], also: Mapping[str, Any]) -> Job | None:
        """Copy the state and have it written; None if the save before is still in progress and this one is dropped."""
        if (before := self._in_progress()) is not None:
            if self._drop:
                return None
            with while_saving():
                self.wait_while_it_moves()
            if not before.done.is_set():
                raise StorageError(
                    f"The save of step {before.step} is stuck: nothing was written for {_STUCK:.0f} seconds.",
                    fix="check whether the disk of the folder answers",
                )
        with torch.no_grad():
            metrics = {name: _detached(value) for name, value in facts["metrics"].items()}
            step, path = self.names.foretell(step)
            live_state = state.read({"step": step, "epoch": facts["epoch"], **also})
            copy = self._copier.copy(live_state, self._block_for(live_state))
        job = self._job = Job(step, path, {**facts, "metrics": metrics}, copy)
        self._moved()
        _finish_at_exit(self)
        self._helper.later(lambda: self._work(job))
        if copy.block is None:  # the training's own memory is being written
            with while_saving():
                job.done.wait()
        return job

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no save is in progress; False if that takes longer than `timeout` seconds."""
        job = self._in_progress()
        return job is None or job.done.wait(timeout)

    def wait_while_it_moves(self) -> None:
        """Wait for the save in progress, unless it is stuck."""
        while not self.wait(1.0) and time.monotonic() - self._moved_at < _STUCK:
            pass

    def close(self) -> None:
        """Finish the save in progress and give the memory back."""
        self.wait_while_it_moves()
        self._helper.close()
        if self.wait(0.0) and self._block is not None:
            self._block.release()
            self._block = None

    def _in_progress(self) -> Job | None:
        """The save in progress; none in a forked child, in which the thread does not run."""
        job = self._job
        return job if job is not None and not job.done.is_set() and job.process == os.getpid() else None

    def _block_for(self, live_state: LiveState) -> Block | None:
        """The block that is reused, or a larger one; None if there is no memory for it."""
        size = self._copier.size(live_state)
        if self._block is not None and self._block.size < size:
            self._block.release()
            self._block = None
        if self._block is None and size < (1.0 - _RESERVE) * available_memory():
            with contextlib.suppress(MemoryError):
                self._block = Block(size, pinned=live_state.on_gpu)
        if self._block is None and live_state.on_gpu:
            raise StorageError(f"There is no host memory for a copy of {size / 1e9:.2f} GB.", fix="free some")
        return self._block

    # In the background

    def _work(self, job: Job) -> None:
        try:
            assert job.copy is not None
            job.copy.wait()
            job.facts["metrics"] = {str(name): _as_number(value) for name, value in job.facts["metrics"].items()}
            self._write(job, job.copy)
        except NonFinite as error:
            rows = error.tensors
            self.report.failed(error, job.step, code="checkpoint-non-finite", bad_tensors=len(rows), tensors=rows[:_NAMED])
        except Exception as error:  # noqa: BLE001 - training continues, and a finding says what happened
            self.report.failed(error, job.step)
        finally:
            self.names.look()
            job.copy = None
            job.done.set()

    def _write(self, job: Job, copy: HostCopy) -> None:
        if self._notes is not None and (others := self._notes.collect(job.step)):
            copy.tree["ranks"] = others
        parts = to_parts(copy.tree, copy.hosts)
        if bad := copy.non_finite():
            names = {id(tensor): name for content in parts.values() for name, tensor in named_tensors(content)}
            raise NonFinite(job.step, [{"name": names.get(id(copy.hosts[n]), "?"), "non_finite": bad[n]} for n in bad])
        job.path = write_verified(self.folder, job.step, parts, size=copy.size, moved=self._moved, **job.facts)
        self._saved(job)

    def _saved(self, job: Job) -> None:
        """Report it, mark the best, and remove those that need not stay."""
        job.saved = True
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


class ShardedSaver(Saver):
    """Saves what all ranks hold together. Every rank must ask for every save; one that comes early waits for the one before.

    Every rank copies its part and continues; in the background the ranks write one checkpoint. Rank 0 leads: it makes the spare
    folder, and when all parts are on the disk it adds training.pt and the manifest and gives the folder its name. A rank that
    dies before that leaves a spare folder, never a checkpoint.
    """

    _group: SaveGroup | None = None

    def save(self, state: TrainingState, step: int | None, facts: Mapping[str, Any], also: Mapping[str, Any]) -> Job | None:
        """Copy this rank's part and have it written with those of the others."""
        if self._group is None:
            self._group = SaveGroup()
            finish_before_groups_end(self)
        self._drop = False  # whether one is in progress may differ between ranks
        return super().save(state, step, facts, also)

    def _write(self, job: Job, copy: HostCopy) -> None:
        """Step by step, all ranks each of them; what fails on one rank is raised on all."""
        assert self._group is not None
        ranks = self._group
        leads = ranks.rank == 0
        names = name_tensors(copy.tree, copy.specs)
        job.step = ranks.share(lambda: job.step)[0]
        bad = ranks.share(lambda: [{"name": names.get(Ref(n), "?"), "non_finite": bad} for n, bad in copy.non_finite().items()])
        if rows := [{"rank": rank, **row} for rank, rows in enumerate(bad) for row in rows]:
            raise NonFinite(job.step, rows)
        size = sum(ranks.share(lambda: copy.size))
        folder = Path(ranks.share(lambda: str(begin_checkpoint(self.folder, job.step, size=size)) if leads else "")[0])
        try:
            write_shards(folder / SHARDS, copy, names, ranks.group)
            self._moved()
            files = ranks.share(lambda: files_of(folder / SHARDS, ranks.rank))
            own = ranks.share(lambda: _state_of_rank(copy))
            finish = partial(self._finish, job, folder, {name: facts for each in files for name, facts in each.items()}, own)
            job.path = Path(ranks.share(lambda: finish(training_part(copy, names)) if leads else "")[0])
        finally:
            if leads:
                spare.clear(folder)
        job.saved = True
        if leads:
            self._saved(job)

    def _finish(self, job: Job, folder: Path, files: Mapping[str, Any], own: list[Tree], training: Tree) -> str:
        """All parts are on the disk: add the rest, give the folder its name, and read it back."""
        training["ranks"] = dict(enumerate(own[1:], 1))
        sync_folder(folder / SHARDS)
        path = finish_checkpoint(folder, job.step, {"training": training}, others=files, moved=self._moved, **job.facts)
        _read_back(path, self._moved)
        return str(path)


def write_verified(
    folder: Path, step: int, parts: Mapping[str, Any], *, size: int, moved: Callable[[], None] = lambda: None, **facts: Any
) -> Path:
    """Write a checkpoint and read it back. Raises StorageError, and DiskFull."""
    path = write_checkpoint(folder, step, parts, size=size, moved=moved, **facts)
    _read_back(path, moved)
    return path


def _read_back(path: Path, moved: Callable[[], None]) -> None:
    try:
        verify_checkpoint(path, from_disk=True, moved=moved)
        read_checkpoint(path, verify=False)  # what cannot be loaded is no checkpoint
    except StorageError:
        spare.remove(path)
        raise


def _state_of_rank(copy: HostCopy) -> Tree:
    """What each rank has for itself, in plain containers and tensors."""
    own = {name: copy.tree[name] for name in _PER_RANK if name in copy.tree}
    return unflatten(own, lambda ref: copy.hosts[ref.number].clone(), arrays=False)  # type: ignore[no-any-return]


def _detached(value: Any) -> Any:
    """A metric as it is now; one on a GPU is copied there, and becomes a number when it has arrived."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _as_number(value: Any) -> float | None:
    """A metric as a manifest has it; None if it is no finite number."""
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
        util.Finalize(None, _finish_all, exitpriority=0)  # it ends its forked children without `atexit`
    _registered_in = os.getpid()
    _savers.add(saver)


def _finish_all() -> None:
    for saver in list(_savers):  # in a forked child those of its parent have nothing in progress
        with contextlib.suppress(Exception):
            saver.wait_while_it_moves()
