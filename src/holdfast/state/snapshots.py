"""Snapshots of the training's state in host memory: bounded in memory and cost, and restored in place.

A snapshot of step `s` is the state before the update of step `s`. It is taken right after the previous update, on a GPU in the
training's own stream. Blocks of memory are allocated ahead in the background and reused. A snapshot can be restored only once
all its weights and optimizer state are known to be finite.

With one rank the interval grows until snapshots cost no more than their fraction of the step time. With several ranks it is
fixed and snapshots are taken only at its multiples, so that all ranks hold the same steps.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from holdfast import units
from holdfast.checkpoints.manifest import free_name, kept_in, read_manifest
from holdfast.checkpoints.read import read_checkpoint
from holdfast.checkpoints.retain import retain, step_to_drop
from holdfast.checkpoints.write import mark_best
from holdfast.errors import CannotRestore, HoldfastError
from holdfast.signals.run_folder import replace_text
from holdfast.state.checkpoint_parts import from_parts, write_whole
from holdfast.state.host_copy import Block, LiveState, Snapshot, copy_state, snapshot_memory
from holdfast.state.report import SaveReport
from holdfast.state.training_state import TrainingState
from holdfast.state.values import Tree

MADE_BY = "guard"  # in the manifest; other writers do not remove these checkpoints
_FIRST_STEPS = (1, 10, 20, 50)  # many runs diverge early; one measured cost alone may be that of a busy machine
_MOMENTUM = 0.9  # of the running mean of a step's seconds
_ROUND_INTERVALS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Snapshots:
    """The snapshots of one training on one rank."""

    def __init__(
        self,
        state: Callable[[], TrainingState | None],
        *,
        every: int = 50,
        keep: int = 3,
        memory_limit: int | None = None,
        budget: float = 0.005,
        run_later: Callable[[Callable[[], None]], None] = lambda job: job(),
        rank: int = 0,
        world_size: int = 1,
        index: Path | None = None,
        facts: Callable[[], Mapping[str, Any]] = dict,
        report: SaveReport | None = None,
        warn: Callable[[str], None] = lambda _text: None,
    ) -> None:
        """`facts` go into the manifest of a checkpoint. Without a `report`, a save that fails raises."""
        self.every = every
        self.taken, self.take_seconds = 0, 0.0  # the number, and the last one's cost to the training thread
        self.copy_seconds = 0.0  # that the last one's copies took in the GPU's stream
        self._state, self._run_later, self._index = state, run_later, index
        self._facts, self._report = facts, report
        self._min_every, self._budget, self._rank, self.alone = every, budget, rank, world_size == 1
        self._snapshots: list[Snapshot] = []
        self._next = _FIRST_STEPS[0]
        self._checked_at, self._step_seconds = 0.0, 0.0
        self._costs: deque[float] = deque(maxlen=3)  # seconds of the last snapshots
        self._lock = threading.RLock()
        self._keep, self._memory_limit, self._warn = keep, memory_limit, warn
        self._blocks: list[Block] = []
        self._allocating, self._off = False, False
        self._was_clean = False  # whether a snapshot was finite: some models hold an infinite buffer all the time

    @property
    def size(self) -> int:
        """Bytes of one snapshot."""
        return self._blocks[0].size if self._blocks else 0

    # Taking

    def due(self, step: int) -> bool:
        """Whether to take a snapshot now; called once a step. False while its memory is being allocated."""
        now = time.perf_counter()
        if self._checked_at:
            seconds = now - self._checked_at
            mean = self._step_seconds or seconds
            self._step_seconds = mean + (1 - _MOMENTUM) * (min(seconds, 4 * mean) - mean)  # limits the weight of an evaluation
        self._checked_at = now
        if step < self._next or self._off or not (self.alone or step in _FIRST_STEPS or step % self.every == 0):
            return False
        return self._has_memory()

    def take(self, step: int) -> bool:
        """Copy the state before the update of `step`; False if there is no memory or no training."""
        start = time.perf_counter()
        state = self._state()
        if state is None or not state.alive():
            return False
        with torch.no_grad():
            live_state = state.read()
            allocating = time.perf_counter()
            block = self._block_for(step, live_state)
            if block is None:
                return False
            block.views(live_state.sources)
            start += time.perf_counter() - allocating  # not counted: each block is made once
            snapshot = Snapshot(step, copy_state(live_state, block), block)
        with self._lock:
            block.users += 1
            self._snapshots.append(snapshot)
        self.taken += 1
        self.take_seconds = time.perf_counter() - start
        self._run_later(lambda: self._after_take(snapshot))
        self._plan_next(step)
        self._checked_at = time.perf_counter()
        return True

    # Restoring

    def steps(self) -> list[int]:
        """Steps of the snapshots not known to be bad, oldest first."""
        with self._lock:
            return sorted(snapshot.step for snapshot in self._snapshots if snapshot.verified is not False)

    def at_or_before(self, step: int) -> Snapshot | None:
        """The newest clean snapshot up to `step`; unchecked ones are checked now.

        For the training thread: may wait for copies from the device.
        """
        with self._lock:
            candidates = sorted((s for s in self._snapshots if s.step <= step), key=lambda s: s.step, reverse=True)
        return next((snapshot for snapshot in candidates if snapshot.verify()), None)

    def restore(self, step: int, *, randomness: bool = False) -> None:
        """Restore the state before the update of `step`. Raises CannotRestore, with nothing changed."""
        snapshot = self.at_or_before(step)
        if snapshot is None or snapshot.step != step:
            raise CannotRestore(f"There is no clean snapshot of step {step}.", fix=f"use one of {self.steps()}")
        self._restore(snapshot.copy.tree, snapshot.copy.hosts, randomness=randomness)

    def drop_after(self, step: int) -> None:
        """Drop the snapshots newer than `step`, after a rollback."""
        with self._lock:
            self._snapshots = [snapshot for snapshot in self._snapshots if snapshot.step <= step]
        self._publish()

    def forget(self) -> None:
        """Drop all snapshots and release their memory."""
        self._off = True
        with self._lock:
            for snapshot in self._snapshots:
                snapshot.copy.wait()
            self._snapshots, self._blocks = [], []  # a block releases its memory when it is deleted
        self._publish()

    # On disk

    def save(self, folder: Path, *, keep: int = 4, best: float | None = None) -> Path | None:
        """Write the newest clean snapshot as a checkpoint, in the background; returns its path at once.

        With a value for `best` it is marked as the best one and kept. If the newest snapshot is not finite, the one before it is
        written. If the state is not sharded, only rank 0 writes.
        """
        parent = self._folder_of_rank(folder)
        with self._lock:
            candidates = [s for s in sorted(self._snapshots, key=lambda s: s.step, reverse=True) if s.verified is not False]
            if not candidates or parent is None:
                return folder / free_name(folder, candidates[0].step) if candidates else None
            for snapshot in candidates:
                snapshot.block.users += 1
        path = candidates[0].path or parent / free_name(parent, candidates[0].step)
        self._run_later(lambda: self._write(candidates, parent, keep, best))
        return path

    def keep_newest(self, folder: Path) -> None:
        """Of what was written, leave only the newest."""
        parent = self._folder_of_rank(folder)
        own = [kept for kept in kept_in(parent) if kept.manifest.get("made_by") == MADE_BY] if parent is not None else []
        if parent is not None and own:
            retain(parent, verified=own[-1].path, keep_last=1, made_by=MADE_BY)

    def restore_from_disk(
        self, folder: Path, *, at_or_before: int | None = None, randomness: bool = False, schedulers: bool = True
    ) -> int | None:
        """Restore the newest complete checkpoint under `folder`, in this thread; returns its step, or None.

        With several ranks pass `at_or_before`, so that no rank takes a checkpoint that was just finished.
        Raises CannotRestore, with nothing changed, if it does not fit.
        """
        for kept in reversed(kept_in(self._folder_of_rank(folder) or folder)):
            if at_or_before is not None and kept.step > at_or_before:
                continue
            try:
                tree, hosts = from_parts(read_checkpoint(kept.path))
            except HoldfastError:  # torn: an older one may be complete
                continue
            self._restore(tree, hosts, randomness=randomness, schedulers=schedulers)
            return kept.step
        return None

    # Parts

    def _restore(self, tree: Tree, hosts: list[torch.Tensor], *, randomness: bool, schedulers: bool = True) -> None:
        state = self._state()
        if state is None or not state.alive():
            raise CannotRestore("The model and the optimizer were deleted.", fix="restore while the training runs")
        state.restore(tree, hosts, randomness=randomness, schedulers=schedulers)

    def _plan_next(self, step: int) -> None:
        """Schedule the next snapshot by the cost of this one."""
        if self.alone and self.taken > 1:  # the first one includes warm-up
            self._costs.append(self.take_seconds + self.copy_seconds)
            cost = min(self._costs)  # anything above was a busy machine
            self.every = affordable_interval(cost, self._step_seconds, budget=self._budget, at_least=self._min_every)
        multiple = step + self.every - step % self.every
        self._next = min((multiple, *(first for first in _FIRST_STEPS if first > step)))

    # Memory

    def _has_memory(self) -> bool:
        """Whether there is memory for a snapshot; the first time it is allocated in the background."""
        state = self._state()
        if not (self._blocks or self._allocating) and state is not None and state.alive():
            self._allocate_later(state.read())
        return bool(self._blocks) and not (self._allocating or self._off)

    def _allocate_later(self, live_state: LiveState) -> None:
        self._allocating = True
        self._run_later(lambda: self._allocate(live_state))

    def _allocate(self, live_state: LiveState) -> None:
        """Allocate blocks for as many snapshots as memory allows; those of a state that has grown since are given up."""
        size, blocks = live_state.size, list[Block]()
        with self._lock:
            self._snapshots, self._blocks = [], []
        limit = snapshot_memory() if self._memory_limit is None else self._memory_limit
        with contextlib.suppress(MemoryError):
            while len(blocks) < min(self._keep, limit // max(1, size)):
                blocks.append(Block(size, pinned=live_state.on_gpu))
        with self._lock:
            self._off = self._off or not blocks
            self._blocks = [] if self._off else blocks
            self._allocating = False
        if not blocks:
            self._warn(
                f"No snapshots are kept: one takes {units.size(size)} and {units.size(limit)} of host memory may be used. "
                "Rollbacks can only use checkpoints on disk."
            )

    def _block_for(self, step: int, live_state: LiveState) -> Block | None:
        """A free block, or that of a dropped snapshot; None if all are in use, or larger ones are being allocated."""
        if not (self._allocating or self._off) and (live_state.size > self.size or not self._blocks):
            (self._allocate_later if self._blocks else self._allocate)(live_state)  # later: the state has grown
        if self._allocating:
            return None
        with self._lock:
            self._snapshots = [s for s in self._snapshots if s.verified is not False and s.step != step]
            taken = {id(snapshot.block) for snapshot in self._snapshots}
            if (free := next((b for b in self._blocks if not b.users and id(b) not in taken), None)) is not None:
                return free
            drop = step_to_drop([s.step for s in self._snapshots], step, every=self.every)
            idle = [s for s in self._snapshots if not s.block.users]
            chosen = next((s for s in idle if s.step == drop), max(idle, key=lambda s: s.step, default=None))
            if chosen is None:
                return None
            self._snapshots.remove(chosen)
            return chosen.block

    # In the background

    def _after_take(self, snapshot: Snapshot) -> None:
        """Check that the copy is finite, and publish it."""
        try:
            if snapshot.verify():
                self._was_clean = True
            else:
                with self._lock, contextlib.suppress(ValueError):  # it may be dropped already
                    self._snapshots.remove(snapshot)
                if self._was_clean and self._report is not None:
                    self._report.failed(
                        _not_finite(snapshot), snapshot.step, code="checkpoint-non-finite", bad_tensors=snapshot.bad
                    )
            self.copy_seconds = snapshot.copy.seconds()
        finally:
            self._release([snapshot])
        self._publish()

    def _write(self, candidates: list[Snapshot], parent: Path, keep: int, best: float | None) -> None:
        """Write the newest clean snapshot, unless it is on disk already; then remove older ones."""
        snapshot = next((candidate for candidate in candidates if candidate.verify()), None)
        try:
            if snapshot is None:
                return
            if snapshot.path is None or snapshot.path.parent != parent or read_manifest(snapshot.path) is None:
                facts = {"rank": self._rank, **self._facts()}
                snapshot.path = write_whole(parent, snapshot.step, snapshot.copy, made_by=MADE_BY, **facts)
                if self._report is not None:
                    self._report.saved(snapshot.path, snapshot.step, by=MADE_BY)
            if best is not None:
                mark_best(snapshot.path, best)
            retain(parent, verified=snapshot.path, keep_last=keep, made_by=MADE_BY, spread=True)
        except (HoldfastError, OSError) as error:
            if self._report is None:
                raise
            self._report.failed(error, snapshot.step if snapshot is not None else None)
        finally:
            self._release(candidates)

    def _release(self, snapshots: list[Snapshot]) -> None:
        with self._lock:
            for snapshot in snapshots:
                snapshot.block.users -= 1

    def _folder_of_rank(self, folder: Path) -> Path | None:
        """The folder of this rank: with sharded parameters each rank writes, else only rank 0."""
        if self._rank == 0:
            return folder
        state = self._state()
        return folder / f"rank-{self._rank}" if state is not None and state.is_sharded() else None

    def _publish(self) -> None:
        if self._index is not None:
            self._run_later(self._write_index)

    def _write_index(self) -> None:
        """Write the steps that can be restored, atomically, for other processes."""
        assert self._index is not None
        with self._lock:
            steps = sorted(snapshot.step for snapshot in self._snapshots if snapshot.verified)
        replace_text(self._index, json.dumps({"steps": steps, "every": self.every}) + "\n")


def _not_finite(snapshot: Snapshot) -> CannotRestore:
    problem = f"The state of step {snapshot.step} was not kept: {snapshot.bad} tensors hold NaN or Inf."
    return CannotRestore(problem, fix="restore the newest clean checkpoint")


def affordable_interval(cost: float, step_seconds: float, *, budget: float, at_least: int) -> int:
    """Steps between two snapshots, a round number, so that `cost` stays within the fraction `budget`."""
    if cost <= budget * step_seconds * at_least:
        return at_least
    if step_seconds <= 0.0:
        return max(_ROUND_INTERVALS[-1], at_least)
    needed = max(at_least, cost / (budget * step_seconds))
    return next((interval for interval in _ROUND_INTERVALS if interval >= needed), max(_ROUND_INTERVALS[-1], at_least))
