"""The training loader: time spent waiting for it, samples drawn, passes finished, its worker processes."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from holdfast.inside.capture.memory import resident_of
from holdfast.signals.recorder import Recorder
from holdfast.signals.schema import MISSING_INT


class Loader:
    """What the loaders of this process did since the last step.

    Batches drawn while gradients are off, or while the model is in evaluation mode, are not training batches.
    """

    def __init__(self) -> None:
        self.waited = 0.0
        self.samples = 0
        self.epoch: int | None = None
        self._finished = 0
        self._dataset: weakref.ref[Any] | int | None = None
        self._iterator: weakref.ref[Any] | None = None
        self._waited_since_row = 0.0

    def note_batch(self, iterator: Any, batch: Any, seconds: float) -> None:
        """Take in one training batch."""
        self.waited += seconds
        self._waited_since_row += seconds
        if not self._is_main(iterator):
            return
        self.samples += count_samples(batch)
        if getattr(iterator, "_num_yielded", 0) == 1 or self.epoch is None:
            self.epoch = self._finished
            self._iterator = weakref.ref(iterator) if iterator is not None else None

    def note_end(self, iterator: Any) -> None:
        """Take in that a training loader was drawn to its end."""
        if self._is_main(iterator) and self.epoch is not None:
            self._finished = self.epoch + 1
            if iterator is None:
                self.epoch = self._finished

    def set_epoch(self, number: int) -> None:
        """Take the epoch from the script; passes are counted on from there."""
        self.epoch = self._finished = number

    def take(self) -> tuple[float, int]:
        """Seconds waited and samples drawn since the last call."""
        taken = self.waited, self.samples
        self.waited, self.samples = 0.0, 0
        return taken

    def workers(self) -> list[Any]:
        """The worker processes of the loader that was drawn from last."""
        iterator = self._iterator() if self._iterator is not None else None
        return list(getattr(iterator, "_workers", ()))

    def workers_resident(self) -> int | None:
        """Resident bytes of all workers together; None without workers."""
        sizes = [resident_of(worker.pid) for worker in self.workers()]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None

    def record(self, recorder: Recorder, step: int) -> None:
        """Write one row per worker; called about once a second from the helper thread."""
        iterator = self._iterator() if self._iterator is not None else None
        if iterator is None and not self._waited_since_row:
            return
        waited, self._waited_since_row = self._waited_since_row, 0.0
        table, now, ready = recorder.table("loader"), time.time(), _ready(iterator)
        workers = self.workers()
        if not workers:
            table.append((step, -1, waited, ready, MISSING_INT, now, MISSING_INT))
        for number, worker in enumerate(workers):
            resident = resident_of(worker.pid)
            table.append((step, number, waited, ready, MISSING_INT if resident is None else resident, now, worker.pid))

    def _is_main(self, iterator: Any) -> bool:
        """Whether this is the loader whose passes are the epochs: the first one that was drawn from in training."""
        dataset = getattr(iterator, "_dataset", None)
        if self._dataset is None:
            self._dataset = _reference(dataset)
        known = self._dataset() if isinstance(self._dataset, weakref.ref) else self._dataset
        if known is None:  # the data set of an earlier training is gone: this is the next one
            self._dataset, self._finished, self.epoch = _reference(dataset), 0, None
            return True
        return known is dataset or known == id(dataset)


def _reference(thing: Any) -> weakref.ref[Any] | int:
    """A weak reference, or the identity of what cannot be referred to weakly (a list used as data set)."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return id(thing)


def _ready(iterator: Any) -> int:
    """Batches that wait to be drawn, where the queue can be asked (macOS cannot)."""
    queue = getattr(iterator, "_data_queue", None)
    if queue is not None:
        with contextlib.suppress(NotImplementedError, OSError, ValueError):
            return int(queue.qsize())
    return MISSING_INT


def count_samples(batch: Any, depth: int = 3) -> int:
    """Length of the first tensor found in a batch, however it is nested; 0 if there is none."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else 1
    if depth == 0:
        return 0
    if isinstance(batch, Mapping):
        parts: Any = batch.values()
    elif isinstance(batch, (list, tuple)):
        parts = batch
    else:
        return 0
    for part in parts:
        found = count_samples(part, depth - 1)
        if found:
            return found
    return 0
