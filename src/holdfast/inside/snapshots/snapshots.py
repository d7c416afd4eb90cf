"""Snapshots of the training's state in host memory: taken behind its back, bounded in memory and cost, and restored in place.

A snapshot of step `s` is the state before the update of step `s`. It is taken right after the update of the step before, so
that the copies run beside the next forward pass; `wait_for_copies` holds the next update back, on the device, until they are
done. Blocks of memory are made ahead by the helper thread and used again. A snapshot is offered only when all its weights
and optimizer state are known to be finite.

With one rank the interval grows until the snapshots cost no more than their share of the step. With several ranks it stays
as given, and snapshots are taken at the multiples of it only, so that all ranks hold the same steps.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from holdfast.checkpoints.manifest import free_name
from holdfast.errors import CannotRestore
from holdfast.inside.snapshots.blocks import Blocks
from holdfast.inside.snapshots.disk import ToDisk, load, restore_newest
from holdfast.inside.snapshots.host_copy import Block, Copier, Layout, shapes_of
from holdfast.inside.snapshots.reading import Tree
from holdfast.inside.snapshots.retention import fitting_interval, to_give_up
from holdfast.inside.snapshots.snapshot import Pending, Snapshot
from holdfast.inside.snapshots.state import Reading, TrainingState

_FIRST_STEPS = (1, 10)  # many runs that blow up do so before the first interval is over
_MEMORY = 0.9  # weight of the past in the running mean of a step's seconds


class Snapshots:
    """The snapshots of one training of one rank."""

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
        to_disk: ToDisk | None = None,
        say: Callable[[str], None] = lambda _words: None,
    ) -> None:
        self.every = every
        self.taken, self.take_seconds = 0, 0.0  # how many, and what the last one cost the training thread
        self._state, self._run_later, self._index = state, run_later, index
        self._to_disk = to_disk or ToDisk(lambda: {"rank": rank})
        self._least, self._budget, self._rank, self._alone = every, budget, rank, world_size == 1
        self._copier, self._layout = Copier(), None  # type: tuple[Copier, Layout | None]
        self._snapshots: list[Snapshot] = []
        self._pending: Pending | None = None
        self._structure: Any = None
        self._next = _FIRST_STEPS[0]
        self._asked_at, self._step_seconds, self._copy_seconds = 0.0, 0.0, 0.0
        self._costs: deque[float] = deque(maxlen=3)  # seconds of the last snapshots
        self._lock = threading.RLock()
        self._blocks = Blocks(keep, memory_limit, run_later=run_later, say=say, lock=self._lock)

    # Taking

    def due(self, step: int) -> bool:
        """Whether a snapshot should be taken now; called once a step. False while its memory is still being made."""
        now = time.perf_counter()
        if self._asked_at:
            seconds = now - self._asked_at
            usual = self._step_seconds or seconds
            self._step_seconds = usual + (1 - _MEMORY) * (min(seconds, 4 * usual) - usual)  # an evaluation is no step
        self._asked_at = now
        if step < self._next or self._blocks.off or not (self._alone or self._is_common(step)):
            return False
        return self._has_room()

    def take(self, step: int) -> bool:
        """Copy the state, as that before the update of `step`; False if there is no room or no training."""
        begun = time.perf_counter()
        state = self._state()
        if state is None or not state.alive():
            return False
        with torch.no_grad():
            reading = state.read()
            layout = self._layout_of(reading)
            made = time.perf_counter()
            block = self._block_for(step, layout.size, pin=_on_gpu(reading))
            if block is None:
                return False
            begun += time.perf_counter() - made  # memory is made once
            hosts = block.lay_out(layout)
            snapshot = Snapshot(step, reading.tree, hosts, block, self._copier.copy_out(reading.sources, hosts))
        with self._lock:
            self._snapshots.append(snapshot)
            self._pending = Pending(snapshot, reading.sources) if snapshot.underway else None
            snapshot.users += 1
        self.taken += 1
        self.take_seconds = time.perf_counter() - begun
        self._run_later(lambda: self._after_take(snapshot, layout.size))
        self._plan_next(step)
        self._asked_at = time.perf_counter()
        return True

    def wait_for_copies(self) -> None:
        """Before any update: have the device finish the copies of what it will change. The host does not wait."""
        pending = self._pending
        if pending is not None:
            for copies in pending.snapshot.underway:
                copies.hold_back()
            with self._lock:
                self._pending = None
                pending.finish()

    # Asking and restoring

    def steps(self) -> list[int]:
        """Steps of the snapshots that are there and not known to be bad, oldest first."""
        with self._lock:
            return sorted(snapshot.step for snapshot in self._snapshots if snapshot.verified is not False)

    def at_or_before(self, step: int) -> Snapshot | None:
        """The newest clean snapshot that is not newer than `step`; one that was not looked at yet is looked at now.

        For the training thread: it may wait for copies from the device.
        """
        self.wait_for_copies()
        with self._lock:
            candidates = sorted((s for s in self._snapshots if s.step <= step), key=lambda s: s.step, reverse=True)
        return next((snapshot for snapshot in candidates if snapshot.verify()), None)

    def restore(self, step: int, *, randomness: bool = False) -> None:
        """Make the training what it was before the update of `step`. Raises CannotRestore, with nothing changed."""
        snapshot = self.at_or_before(step)
        if snapshot is None or snapshot.step != step:
            raise CannotRestore(f"There is no clean snapshot of step {step}.", fix=f"use one of {self.steps()}")
        self._living().put_back(snapshot.tree, snapshot.hosts, randomness=randomness)

    def drop_after(self, step: int) -> None:
        """Forget the snapshots that are newer than `step`: what led there was given up."""
        with self._lock:
            for snapshot in [snapshot for snapshot in self._snapshots if snapshot.step > step]:
                self._drop(snapshot)
        self._tell()

    def forget(self) -> None:
        """Forget all snapshots and give their memory back."""
        self._blocks.off = True
        with self._lock:
            snapshots, self._snapshots = self._snapshots, []
        for snapshot in snapshots:
            if snapshot.underway:
                torch.cuda.synchronize()  # copies to it, and from it into the training
            if not snapshot.users:
                snapshot.block.release()
        self._pending = None
        self._blocks.release_all()
        self._tell()

    def write_index(self, path: Path) -> None:
        """Tell the outside, in one file that is replaced in one move, which snapshots can be restored."""
        with self._lock:
            steps = sorted(snapshot.step for snapshot in self._snapshots if snapshot.verified)
        spare = path.with_name(f".{path.name}.{os.getpid()}")
        spare.write_text(json.dumps({"steps": steps, "every": self.every}) + "\n", encoding="utf-8")
        spare.replace(path)

    # On disk

    def save(self, folder: Path, *, keep: int = 3, best: float | None = None) -> Path | None:
        """Have the newest clean snapshot written as a checkpoint under `folder`; returns where, at once.

        With a value for `best` it is the best one so far, and stays whatever its age.
        If the newest turns out not to be finite, the one before it is written. Where every rank holds the same, rank 0 writes.
        """
        with self._lock:
            candidates = [s for s in sorted(self._snapshots, key=lambda s: s.step, reverse=True) if s.verified is not False]
            for snapshot in candidates:
                snapshot.users += 1
        if not candidates:
            return None
        parent = self._own_folder(folder)
        path = candidates[0].path or (parent or folder) / free_name(parent or folder, candidates[0].step)
        self._run_later(lambda: self._write(candidates, parent, keep, best))
        return path

    def restore_from_disk(self, folder: Path, *, at_or_before: int | None = None, randomness: bool = False) -> int | None:
        """Restore the newest whole checkpoint under `folder` and return its step; None if there is none. Reads in this thread.

        With several ranks name `at_or_before`, so that a checkpoint that is just being finished is not taken by some only.
        """
        own = self._own_folder(folder) or folder
        return restore_newest(own, partial(self._put_back, randomness=randomness), at_or_before=at_or_before)

    def load(self, path: Path, *, randomness: bool = False) -> None:
        """Restore one checkpoint that `save` wrote. Raises StorageError or CannotRestore, with nothing changed."""
        load(path, partial(self._put_back, randomness=randomness))

    # Parts

    def _put_back(self, tree: Tree, hosts: list[torch.Tensor], *, randomness: bool) -> None:
        self.wait_for_copies()
        self._living().put_back(tree, hosts, randomness=randomness)

    def _living(self) -> TrainingState:
        state = self._state()
        if state is None or not state.alive():
            raise CannotRestore("The model and the optimizer are gone.", fix="restore while the training runs")
        return state

    def _layout_of(self, reading: Reading) -> Layout:
        if self._layout is None or self._layout.shapes != shapes_of(reading.sources):
            self._layout = Layout(reading.sources)
        structure = (
            [len(part["parameters"]) for part in reading.tree["models"]],
            [[group["count"] for group in saved["groups"]] for saved in reading.tree["optimizers"]],
        )
        if self._structure is not None and structure != self._structure:  # those from before cannot be restored any more
            with self._lock:
                for snapshot in list(self._snapshots):
                    self._drop(snapshot)
        self._structure = structure
        return self._layout

    def _is_common(self, step: int) -> bool:
        return step in _FIRST_STEPS or step % self.every == 0

    def _plan_next(self, step: int) -> None:
        """When the next one is due, by what this one cost; a copy that outlasts half a step holds the next update back."""
        if self._alone and self.taken > 1:  # the first also warms up
            stall = max(0.0, self._copy_seconds - 0.5 * self._step_seconds)
            self._costs.append(self.take_seconds + stall)
            cost = min(self._costs)  # what it took beyond that was the machine's, busy with something else
            self.every = fitting_interval(cost, self._step_seconds, share=self._budget, at_least=self._least)
        later = step + self.every - step % self.every
        self._next = next((first for first in _FIRST_STEPS if first > step), later)

    # Memory

    def _has_room(self) -> bool:
        """Whether the next snapshot has a block; if not, have one made and say no for now."""
        with self._lock:
            if self._blocks.free or self._blocks.being_made:
                return bool(self._blocks.free)
            if self._snapshots and self._blocks.count >= self._blocks.fitting(self._snapshots[-1].block.size):
                return True
        state = self._state()
        if state is None or not state.alive():
            return False
        reading = state.read()
        size = self._layout_of(reading).size
        if self._blocks.fitting(size) < 1:
            return False
        self._blocks.make_one(size, pin=_on_gpu(reading))
        return bool(self._blocks.free)

    def _block_for(self, step: int, size: int, *, pin: bool) -> Block | None:
        """A free block, a new one, or that of the snapshot that has to go; None if all are being read or none fits."""
        fitting = self._blocks.fitting(size)
        if fitting < 1:
            return None
        with self._lock:
            for old in [s for s in self._snapshots if s.verified is False or s.step == step]:
                self._drop(old)
            if not self._blocks.free and self._blocks.count + self._blocks.being_made >= fitting:
                goes = to_give_up([s.step for s in self._snapshots], step, every=self.every, keep=fitting)
                idle = [s for s in self._snapshots if not s.users and s.copied()]
                chosen = next((s for s in idle if s.step == goes), max(idle, key=lambda s: s.step, default=None))
                if chosen is None:
                    return None
                self._drop(chosen)
        return self._blocks.take(size, pin=pin)

    def _drop(self, snapshot: Snapshot) -> None:
        """Take a snapshot off the list; its block is free unless someone still reads it."""
        self._snapshots.remove(snapshot)
        self._blocks.give_back(snapshot.block, still_read=bool(snapshot.users) or not snapshot.copied())

    # In the helper thread

    def _after_take(self, snapshot: Snapshot, size: int) -> None:
        """Look whether the copies are whole and finite, tell the outside, and have the next block made."""
        try:
            clean = snapshot.verify()
            with self._lock:
                pending = self._pending
                if pending is not None and pending.snapshot is snapshot:
                    self._pending = None
                    pending.finish()
                    clean = clean and snapshot.verified is True
            if snapshot.underway:
                self._copy_seconds = max(copies.seconds() for copies in snapshot.underway)
        finally:
            self._release([snapshot])
        with self._lock:
            if not clean and snapshot in self._snapshots:
                self._drop(snapshot)
            blocks = self._blocks
            more = not (blocks.free or blocks.being_made or blocks.off) and blocks.count < blocks.fitting(size)
        self._tell()
        if more:
            self._blocks.make_one(size, pin=bool(snapshot.underway))

    def _write(self, candidates: list[Snapshot], parent: Path | None, keep: int, best: float | None) -> None:
        try:
            snapshot = next((candidate for candidate in candidates if candidate.verify()), None)
            if snapshot is not None and parent is not None:
                self._to_disk.write(snapshot, parent, keep=keep, best=best)
        finally:
            self._release(candidates)

    def _release(self, snapshots: list[Snapshot]) -> None:
        with self._lock:
            for snapshot in snapshots:
                snapshot.users -= 1

    def _own_folder(self, folder: Path) -> Path | None:
        """Where this rank writes: with sharded parameters each rank its own part, else only rank 0."""
        if self._rank == 0:
            return folder
        state = self._state()
        return folder / f"rank-{self._rank}" if state is not None and state.is_sharded() else None

    def _tell(self) -> None:
        if self._index is not None:
            index = self._index
            self._run_later(lambda: self.write_index(index))


def _on_gpu(reading: Reading) -> bool:
    return any(source.tensor.is_cuda for source in reading.sources)
