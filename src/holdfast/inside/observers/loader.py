"""The training loader: time spent waiting for it, samples drawn, passes finished, its worker processes."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data.dataloader import _DatasetKind

from holdfast.inside.observers.memory import resident_of
from holdfast.signals.recorder import Recorder
from holdfast.signals.schema import MISSING_INT


class _Pass:
    """A pass over a loader, as far as it has come since the last step."""

    __slots__ = ("batches", "iterator", "samples", "waited")

    def __init__(self, iterator: Any) -> None:
        self.iterator = weakref.ref(iterator) if iterator is not None else None
        self.batches, self.samples, self.waited = 0, 0, 0.0

    def is_of(self, iterator: Any) -> bool:
        """Whether it is a pass of this very iterator."""
        return self.iterator is None if iterator is None else self.iterator is not None and self.iterator() is iterator


class Loader:
    """What the loaders of this process did since the last step.

    Batches drawn while gradients are off are not training batches; nor are those of another data set than the main one
    while the model is in evaluation mode. The main one is the first that a training has begun to draw from.
    """

    def __init__(self, *, joins_late: bool = False) -> None:
        self.waited = 0.0
        self.samples = 0
        self.epoch: int | None = None
        self._finished = 0
        self._said: int | None = None
        self._length: int | None = None
        self._dataset: weakref.ref[Any] | int | None = None
        self._iterator: weakref.ref[Any] | None = None
        self._waited_since_row = 0.0
        self._joins_late = joins_late  # whether a training may have been under way before anyone looked
        self._drawn: dict[int, tuple[weakref.ref[Any] | int, _Pass]] = {}  # since the last step, by data set

    def begin(self) -> None:
        """A training begins. The pass that is under way is its first; what was drawn to its end before is none of it."""
        self._dataset, self._iterator, self.epoch, self._finished = None, None, self._said, self._said or 0
        self.waited, self.samples = 0.0, 0
        for dataset, under_way in self._drawn.values():
            if not under_way.batches:
                continue  # nothing since the last step
            self._dataset, self._iterator, self.epoch = dataset, under_way.iterator, self._finished
            self._length = _length(under_way.iterator() if under_way.iterator is not None else None)
            self.waited, self.samples = under_way.waited, under_way.samples
            break

    @property
    def has_drawn(self) -> bool:
        """Whether a batch was drawn since the last step, and its pass is not over."""
        return any(under_way.batches for _, under_way in list(self._drawn.values()))

    def note_batch(self, iterator: Any, batch: Any, seconds: float, *, evaluating: bool = False) -> None:
        """Take in one batch that was drawn with gradients on."""
        drawn = getattr(iterator, "_num_yielded", 0)
        samples, is_first = count_samples(batch), drawn == 1
        if self._joins_late and self._dataset is None and not evaluating:
            self._dataset = _reference(getattr(iterator, "_dataset", None))
        self._note_pass(iterator, samples, seconds, is_first)
        is_main = self.is_main(iterator)
        if is_main or not evaluating:
            self.waited += seconds
            self._waited_since_row += seconds
        if is_main:
            self.samples += samples
            if is_first or self.epoch is None:
                self.epoch = self._finished
                self._iterator = weakref.ref(iterator) if iterator is not None else None
                self._length = _length(iterator)
            if drawn == self._length:  # who counts batches never sees the loader's end
                self._finished = self.epoch + 1

    def note_end(self, iterator: Any) -> None:
        """Take in that a loader was drawn to its end."""
        self._drawn.pop(id(getattr(iterator, "_dataset", None)), None)
        if self.is_main(iterator) and self.epoch is not None:
            self._finished = self.epoch + 1
            if iterator is None:
                self.epoch = self._finished

    def is_main(self, iterator: Any) -> bool:
        """Whether this is the loader whose passes are the epochs."""
        dataset = getattr(iterator, "_dataset", None)
        if isinstance(self._dataset, weakref.ref):
            return self._dataset() is dataset and dataset is not None
        return self._dataset == id(dataset)

    def drawn_from(self) -> tuple[Any, Any]:
        """The iterator that was drawn from last, None once it is gone, and the main data set, or its identity."""
        iterator = self._iterator() if self._iterator is not None else None
        return iterator, self._dataset() if isinstance(self._dataset, weakref.ref) else self._dataset

    def set_epoch(self, number: int) -> None:
        """Take the epoch from the script; passes are counted on from there."""
        self.epoch = self._finished = self._said = number

    def take(self) -> tuple[float, int]:
        """Seconds waited and samples drawn since the last call."""
        taken = self.waited, self.samples
        self.waited, self.samples, self._said = 0.0, 0, None
        if len(self._drawn) == 1:  # the common case: it will be drawn from again
            for _, under_way in self._drawn.values():
                under_way.batches, under_way.samples, under_way.waited = 0, 0, 0.0
        else:
            self._drawn.clear()
        return taken

    def give_back(self, waited: float, samples: int) -> None:
        """Undo what was taken for steps that turned out to be part of another one."""
        self.waited += waited
        self.samples += samples

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
        if iterator is None and (self._iterator is not None or not self._waited_since_row):
            return  # between two passes there are no workers, which does not make it a loader without any
        waited, self._waited_since_row = self._waited_since_row, 0.0
        table, now, ready = recorder.table("loader"), time.time(), _ready(iterator)
        workers = self.workers()
        settings = _switch(iterator, "_persistent_workers"), _switch(iterator, "_pin_memory")
        if not workers:
            table.append((step, -1, waited, ready, MISSING_INT, now, MISSING_INT, *settings))
        for number, worker in enumerate(workers):
            resident = resident_of(worker.pid)
            table.append((step, number, waited, ready, MISSING_INT if resident is None else resident, now, worker.pid, *settings))

    def _note_pass(self, iterator: Any, samples: int, seconds: float, is_first: bool) -> None:
        dataset = getattr(iterator, "_dataset", None)
        known = None if is_first else self._drawn.get(id(dataset))
        if known is None or not known[1].is_of(iterator):
            self._drawn.pop(id(dataset), None)  # to be the last in the row
            known = self._drawn[id(dataset)] = _reference(dataset), _Pass(iterator)
        elif not known[1].batches and len(self._drawn) > 1:
            self._drawn[id(dataset)] = self._drawn.pop(id(dataset))
        known[1].batches += 1
        known[1].samples += samples
        known[1].waited += seconds


def _reference(thing: Any) -> weakref.ref[Any] | int:
    """A weak reference, or the identity of what cannot be referred to weakly (a list used as data set)."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return id(thing)


def _length(iterator: Any) -> int | None:
    """Batches in a pass, where that is certain: a loader over a data set that is read by index."""
    with contextlib.suppress(TypeError, NotImplementedError):
        return len(iterator) if getattr(iterator, "_dataset_kind", None) == _DatasetKind.Map else None
    return None


def _switch(iterator: Any, name: str) -> int:
    value = getattr(iterator, name, None)
    return int(value) if isinstance(value, bool) else MISSING_INT


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
