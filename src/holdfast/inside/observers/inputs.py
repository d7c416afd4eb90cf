"""Sample the inputs of training and evaluation: scale, label entropy, samples that repeat or leak between the splits.

Of a batch a few samples are read, and a few values of each, so that the cost does not depend on its size; data that is kept on
the GPU is copied from there, which waits for it. A sample is remembered by a hash; none of its content is kept.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import SubsetRandomSampler

from holdfast.inside.budget import Budget
from holdfast.inside.observers.batch_contents import leaves
from holdfast.inside.observers.loader import Loader, weak_reference
from holdfast.signals.recorder import Recorder
from holdfast.signals.schema import MISSING, MISSING_INT

TRAIN, HELD_OUT = "inputs", "held-out"  # names of these sampled metrics
_MAX_FIELDS, _MAX_SAMPLES, _VALUES_PER_SAMPLE, _MAX_NAMES = 8, 32, 512, 64
_MAX_COPIED_VALUES = 1 << 22  # of a batch that is not contiguous
_MAX_HASHES, _MAX_CLASSES, _MAX_HELD_OUT = 1 << 16, 4096, 4
_SHORT_PASS = 8  # steps: shorter passes are not told apart


class Sampled(Protocol):
    """The training whose inputs are sampled."""

    step: int
    budget: Budget
    recorder: Recorder
    loader: Loader

    def charge(self, metric: str, begun: float) -> None:
        """Charge the time since `begun` to a sampled metric."""


class Inputs:
    """Samples the batches of one training, and remembers the hashes of its training samples."""

    def __init__(self) -> None:
        self._hashes: dict[str, set[int]] = {}  # by field
        self._class_counts: dict[str, dict[int, int]] = {}  # by field
        self._datasets: list[weakref.ref[Any] | int] = []
        self._held_out: tuple[int, dict[int, int]] = (-1, {})  # step, samples of each dataset that were looked at in it
        self._first_batch: list[int] = []  # hashes of the batch that the last pass began with
        self._epoch: int | None = None  # of the last batch
        self._pass_start, self._repeats = -_SHORT_PASS, 0
        self._learned_from: set[int] = set()  # numbers of datasets
        self._undecided: tuple[Any, Any] | None = None  # the first batch of a pass over another dataset, with its iterator

    def batch(self, training: Sampled, iterator: Any, batch: Any) -> None:
        """Sample a training batch, if it is due or begins a pass."""
        budget, step = training.budget, training.step
        first = getattr(iterator, "_num_yielded", 0) == 1
        if not self._learned_from:
            self._learned_from.add(self._number_of(iterator))
        elif first and self._number_of(iterator) not in self._learned_from:  # some draw a batch before they call `model.eval()`
            self._undecided = iterator, batch
            return
        undecided, self._undecided = self._undecided, None
        if undecided is not None and undecided[0] is iterator:  # the second batch is trained on, so the first one was
            self._learned_from.add(self._number_of(iterator))
            first, batch = True, undecided[1]
        first |= training.loader.epoch != self._epoch  # some loaders never end, and the script counts the epochs
        begins_pass, self._epoch = first and step - self._pass_start >= _SHORT_PASS, training.loader.epoch
        if step == self._pass_start + 1 and _identity(batch) == self._first_batch:
            self._first_batch = []  # all batches look like that
        if begins_pass or (step >= budget.metrics[TRAIN].next_step and budget.due(TRAIN, step)):
            start = time.perf_counter()
            repeats = self._count_repeats(step, batch) if begins_pass else MISSING_INT
            self._record(training, "train", self._number_of(iterator), _dataset_of(iterator), batch, repeats)
            training.charge(TRAIN, start)

    def held_out(self, training: Sampled, iterator: Any, batch: Any) -> None:
        """Sample the first evaluation batches of each dataset, if that is due: as many as make up a batch of usual size.

        It is due whenever twice as many steps have been made, whatever it costs: by then more of the training data is known.
        """
        self._undecided = None
        step, budget = training.step, training.budget
        if self._held_out[0] != step:
            is_due = step >= budget.metrics[HELD_OUT].next_step and budget.due(HELD_OUT, step)
            if not is_due and step < 2 * self._held_out[0]:
                return
            self._held_out = (step, {})
        sampled, number = self._held_out[1], self._number_of(iterator)
        if sampled.setdefault(number, 0) >= _MAX_SAMPLES or len(sampled) > _MAX_HELD_OUT:
            return
        start = time.perf_counter()
        sampled[number] += self._record(training, "val", number, self._training_dataset(), batch) or _MAX_SAMPLES
        training.charge(HELD_OUT, start)

    def _count_repeats(self, step: int, batch: Any) -> int:
        """How many passes in a row have begun with this batch, in this order."""
        hashes = _identity(batch)
        is_same = len(hashes) > 1 and hashes == self._first_batch
        self._first_batch, self._pass_start, self._repeats = hashes, step, self._repeats + 1 if is_same else 0
        return self._repeats

    def _record(self, training: Sampled, split: str, number: int, dataset: Any, batch: Any, repeats: int = MISSING_INT) -> int:
        """Note some samples of a batch; returns how many."""
        code, table, most = training.recorder.strings.code, training.recorder.table("inputs"), 0
        for name, values in _sample_fields(batch):
            hashes = [hash(row.tobytes()) for row in values]
            is_sample = values.shape[1] > 1  # single numbers repeat anyway
            seen = self._hashes.setdefault(name, set())
            num_seen = sum(value in seen for value in hashes) if is_sample else MISSING_INT
            if is_sample and split == "train" and len(seen) < _MAX_HASHES:
                seen.update(hashes)
            is_new = split == "train" and repeats <= 0  # a repeated batch would count too often
            entropy = self._entropy(name, values, add=is_new) if values.dtype.kind in "iu" else MISSING
            floats = values.astype(np.float64)
            scale = [float(floats.mean()), float(floats.std()), float(floats.min()), float(floats.max())]
            counts = (len(hashes), len(set(hashes)), num_seen)
            rest = (entropy, _fraction_seen(len(seen), dataset), repeats)
            table.append((training.step, code(split), number, code(name), *scale, *counts, *rest))
            most = max(most, len(hashes))
        return most

    def _entropy(self, name: str, values: Any, *, add: bool) -> float:
        """Entropy of the labels so far in nats: the loss of a constant guess. Negative labels (ignore_index) do not count."""
        counts = self._class_counts.setdefault(name, {})
        if add and len(counts) <= _MAX_CLASSES:
            for label, count in zip(*(part.tolist() for part in np.unique(values[values >= 0], return_counts=True)), strict=True):
                counts[label] = counts.get(label, 0) + count
        if not 1 < len(counts) <= _MAX_CLASSES:
            return MISSING
        total = sum(counts.values())
        return -sum(count / total * math.log(count / total) for count in counts.values())

    def _number_of(self, iterator: Any) -> int:
        """The number of a dataset; the first training dataset is 0."""
        dataset = _dataset_of(iterator)
        for number, earlier in enumerate(self._datasets):
            if (earlier() is dataset) if isinstance(earlier, weakref.ref) else (earlier == id(dataset)):
                return number
        self._datasets.append(weak_reference(dataset))
        return len(self._datasets) - 1

    def _training_dataset(self) -> Any:
        first = self._datasets[0] if self._datasets else None
        return first() if isinstance(first, weakref.ref) else None


def _identity(batch: Any) -> list[int]:
    """Hashes that tell its samples from others: of names such as those of files, which no augmentation changes, or of values."""
    names = [value for _, value in islice(leaves(batch, depth=3), _MAX_NAMES) if isinstance(value, str)]
    if len(set(names)) > 1:
        return [*map(hash, names)]
    values = next((values for _, values in _sample_fields(batch) if values.shape[1] > 1), None)
    return [] if values is None else [hash(row.tobytes()) for row in values]


def _fraction_seen(count: int, dataset: Any) -> float:
    """The fraction of the training data whose hashes are kept."""
    try:
        return count / max(1, len(dataset))
    except (TypeError, NotImplementedError):
        return MISSING


def _dataset_of(iterator: Any) -> Any:
    """What a loader draws from; two loaders may have a part each of one data set, by their samplers."""
    sampler = getattr(getattr(iterator, "_index_sampler", None), "sampler", None)
    return sampler if isinstance(sampler, SubsetRandomSampler) else getattr(iterator, "_dataset", None)


def _sample_fields(batch: Any) -> Iterator[tuple[str, Any]]:
    """Yield some values of some samples of each field, one row per sample."""
    for name, value in islice(leaves(batch, depth=3), _MAX_FIELDS):
        if isinstance(value, torch.Tensor) and value.dim() > 0 and value.numel() > 0 and _is_readable(value):
            apart = max(1, len(value) // _MAX_SAMPLES)  # from all of the batch: held-out data is often in order
            whole = value.detach().view(len(value), -1) if value.is_contiguous() else value.detach()
            samples = whole[::apart][:_MAX_SAMPLES]
            if not value.is_contiguous() and samples.numel() > _MAX_COPIED_VALUES:
                continue
            rows = samples.reshape(len(samples), -1)
            rows = rows[:, :: max(1, rows.shape[1] // _VALUES_PER_SAMPLE)]
            yield name, (rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows).cpu().numpy()


def _is_readable(value: torch.Tensor) -> bool:
    if value.layout is not torch.strided or value.is_quantized or value.is_complex():
        return False
    if not (value.is_cpu or (value.is_cuda and not torch.cuda.is_current_stream_capturing())):
        return False
    return value.dtype is not torch.bool and (not value.is_floating_point() or value.itemsize > 1)
