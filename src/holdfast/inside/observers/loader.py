"""The training loader: time spent waiting for data, samples drawn, epochs, worker processes."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data.dataloader import _DatasetKind

from holdfast.inside.observers.memory import resident_of
from holdfast.signals.recorder import Recorder
from holdfast.signals.schema import MISSING_INT

NO_WORKER = -1  # in the place of a worker's number where the training reads its data itself


@dataclass(slots=True)
class _Pass:
    """A pass in progress over one dataset: what was drawn in it since the last step."""

    dataset: weakref.ref[Any] | int
    iterator: weakref.ref[Any] | None
    samples: int = 0
    seconds: float = 0.0


class Loader:
    """What the loaders of one training did since the last step.

    Batches drawn with gradients off are not training batches; nor are, in evaluation mode, those of any dataset but the main
    one. The main dataset is the first that a training draws from.
    """

    def __init__(self, *, joins_late: bool = False) -> None:
        self.waited = 0.0
        self.samples = 0
        self.epoch: int | None = None
        self._next_epoch = 0
        self._script_epoch: int | None = None
        self._length: int | None = None
        self._dataset: weakref.ref[Any] | int | None = None
        self._iterator: weakref.ref[Any] | None = None
        self._waited_for: dict[int, float] = {}  # seconds since the last row, by worker
        self._joins_late = joins_late  # Holdfast may have been attached in the middle of a training
        self._drawn: dict[int, _Pass] = {}  # since the last step, in passes that have not ended; by the id of the dataset

    def begin(self) -> None:
        """Start a training. The pass in progress is its first epoch; passes that ended before do not count."""
        self._dataset, self._iterator = None, None
        self.epoch, self._next_epoch = self._script_epoch, self._script_epoch or 0
        self.waited, self.samples = 0.0, 0
        if self._drawn:
            first = min(self._drawn.values(), key=lambda drawn: (is_gone(drawn.dataset), is_gone(drawn.iterator)))
            self._dataset, self._iterator, self.epoch = first.dataset, first.iterator, self._next_epoch
            self._length = _num_batches(first.iterator() if first.iterator is not None else None)
            self.waited, self.samples = first.seconds, first.samples

    @property
    def has_drawn(self) -> bool:
        """Whether a pass in progress has drawn a batch since the last step."""
        return bool(self._drawn)

    def note_batch(self, iterator: Any, batch: Any, seconds: float, *, evaluating: bool = False) -> None:
        """Count one batch that was drawn with gradients on."""
        num_drawn, dataset = getattr(iterator, "_num_yielded", 0), getattr(iterator, "_dataset", None)
        samples, is_first, is_another = count_samples(batch), num_drawn == 1, False
        reference = weakref.ref(iterator) if iterator is not None else None
        if (is_gone(self._dataset) or (self._joins_late and self._dataset is None)) and not evaluating:
            self._dataset, self._length, is_another = weak_reference(dataset), _num_batches(iterator), True
        drawn = self._drawn.pop(id(dataset), None) if is_first else self._drawn.get(id(dataset))
        if drawn is None or is_first:
            drawn = self._drawn[id(dataset)] = _Pass(weak_reference(dataset), reference)
        drawn.samples += samples
        drawn.seconds += seconds
        is_main = self.is_main(iterator)
        if is_main or not evaluating:
            self.waited += seconds
            self._note_wait(iterator, num_drawn, seconds)
        if is_main:
            self.samples += samples
            if is_first or is_another or self.epoch is None:  # the one before it may outlive its pass by a few steps
                self.epoch = self._next_epoch
                self._iterator = reference
                self._length = _num_batches(iterator)
            if num_drawn == self._length:  # a loop that counts batches never reaches StopIteration
                self._next_epoch = self.epoch + 1

    def _note_wait(self, iterator: Any, num_drawn: int, seconds: float) -> None:
        """Whose batch was waited for: workers take turns. The first batches of a pass are those of workers that only start."""
        workers = getattr(iterator, "_num_workers", 0)
        if not workers:
            whose: Sequence[int] = (NO_WORKER,)
        elif num_drawn > 2 * workers and getattr(iterator, "_in_order", True):
            whose = ((num_drawn - 1) % workers,)
        else:
            whose = range(workers)
        for worker in whose:
            self._waited_for[worker] = self._waited_for.get(worker, 0.0) + seconds / max(1, len(whose))

    def note_end(self, iterator: Any) -> None:
        """Note that a loader is exhausted."""
        self._drawn.pop(id(getattr(iterator, "_dataset", None)), None)
        if self.is_main(iterator) and self.epoch is not None:
            self._next_epoch = self.epoch + 1
            if iterator is None:
                self.epoch = self._next_epoch

    def is_main(self, iterator: Any) -> bool:
        """Whether this loader's passes are the epochs."""
        dataset = getattr(iterator, "_dataset", None)
        if isinstance(self._dataset, weakref.ref):
            return self._dataset() is dataset and dataset is not None
        return self._dataset == id(dataset)

    def drawn_from(self) -> tuple[Any, Any]:
        """The last iterator, None once it is gone, and the main dataset or its id."""
        dataset = self._dataset() if isinstance(self._dataset, weakref.ref) else self._dataset
        return self._last_iterator(), dataset

    def set_epoch(self, number: int) -> None:
        """Take the epoch from the script; later passes count from there."""
        self.epoch = self._next_epoch = self._script_epoch = number

    def take(self) -> tuple[float, int]:
        """Seconds waited and samples drawn since the last call."""
        taken = self.waited, self.samples
        self.waited, self.samples, self._script_epoch = 0.0, 0, None
        self._drawn.clear()
        return taken

    def give_back(self, waited: float, samples: int) -> None:
        """Undo `take` for steps that turned out to belong to another optimizer."""
        self.waited += waited
        self.samples += samples

    def workers(self) -> list[Any]:
        """The worker processes of the last iterator."""
        return list(getattr(self._last_iterator(), "_workers", ()))

    def workers_resident(self) -> int | None:
        """Resident bytes of all workers; None without workers."""
        sizes = [size for worker in self.workers() if (size := resident_of(worker.pid)) is not None]
        return sum(sizes) if sizes else None

    def record(self, recorder: Recorder, step: int) -> None:
        """Write one row per worker; the helper thread calls this about once a second."""
        iterator = self._last_iterator()
        if iterator is None and (self._iterator is not None or not self._waited_for):
            return  # no workers between two passes, which does not mean `num_workers=0`
        waited, self._waited_for = self._waited_for, {}
        table, now, ready = recorder.table("loader"), time.time(), _num_ready(iterator)
        workers = self.workers()
        settings = _bool_setting(iterator, "_persistent_workers"), _bool_setting(iterator, "_pin_memory")
        if not workers:
            table.append((step, NO_WORKER, sum(waited.values()), ready, MISSING_INT, now, MISSING_INT, *settings))
        for number, worker in enumerate(workers):
            resident, wait = resident_of(worker.pid), waited.get(number, 0.0)
            table.append((step, number, wait, ready, MISSING_INT if resident is None else resident, now, worker.pid, *settings))

    def _last_iterator(self) -> Any:
        return self._iterator() if self._iterator is not None else None


def weak_reference(value: Any) -> weakref.ref[Any] | int:
    """A weak reference, or the id of an object that allows none (a list used as a dataset)."""
    try:
        return weakref.ref(value)
    except TypeError:
        return id(value)


def is_gone(reference: weakref.ref[Any] | int | None) -> bool:
    """Whether a dataset or an iterator no longer exists: Keras makes one for each pass, some look at one batch first."""
    return isinstance(reference, weakref.ref) and reference() is None


def _num_batches(iterator: Any) -> int | None:
    """Batches in a pass, where that is certain: a loader over a map-style dataset."""
    with contextlib.suppress(TypeError, NotImplementedError):
        return len(iterator) if getattr(iterator, "_dataset_kind", None) == _DatasetKind.Map else None
    return None


def _bool_setting(iterator: Any, name: str) -> int:
    value = getattr(iterator, name, None)
    return int(value) if isinstance(value, bool) else MISSING_INT


def _num_ready(iterator: Any) -> int:
    """Batches that are ready, where the queue has a size (not on macOS): in it, or out of it before their turn."""
    queue, tasks = getattr(iterator, "_data_queue", None), getattr(iterator, "_task_info", None)
    if queue is not None:
        with contextlib.suppress(NotImplementedError, OSError, ValueError, RuntimeError):  # the training draws meanwhile
            return int(queue.qsize()) + sum(len(task) > 1 for task in list((tasks or {}).values()))
    return MISSING_INT


def count_samples(batch: Any, depth: int = 3) -> int:
    """Length of the first tensor in a batch, however it is nested; 0 if there is none."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else 1
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    if depth:
        for value in values:
            if count := count_samples(value, depth - 1):
                return count
    return 0
