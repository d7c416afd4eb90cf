"""What the inputs look like, in a few batches of the training and of its evaluations: their scale, and which samples they are.

Only what a loader hands out in host memory is looked at: some samples of a batch and some numbers of each, so that it costs the
same whatever their size. Of a sample a mark is kept, by which it is known when it comes again; nothing else of it is kept.
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

from holdfast.inside.budget import Budget
from holdfast.inside.observers.batch_contents import leaves
from holdfast.signals.recorder import Recorder
from holdfast.signals.schema import MISSING, MISSING_INT

TRAIN, HELD_OUT = "inputs", "held-out"  # the luxuries that these are
_FIELDS, _SAMPLES, _NUMBERS = 8, 32, 512  # that are looked at: fields of a batch, samples of it, numbers of each
_COPIED_AT_MOST = 1 << 22  # numbers, of a batch that does not lie in memory as it is read
_MARKS, _CLASSES, _SOURCES = 1 << 16, 4096, 4
_SHORT = 8  # steps: shorter passes are not told from each other


class Sampled(Protocol):
    """The training whose inputs are looked at."""

    step: int
    budget: Budget
    recorder: Recorder

    def charge(self, metric: str, begun: float) -> None:
        """What was done since `begun` is not part of every step."""


class Inputs:
    """Looks at batches of one training, and remembers the marks of the samples that it learned from."""

    def __init__(self) -> None:
        self._marks: dict[str, set[int]] = {}
        self._classes: dict[str, dict[int, int]] = {}
        self._sources: list[weakref.ref[Any] | int] = []
        self._looked_at: tuple[int, set[int]] = (-1, set())
        self._first: list[int] = []  # marks of the batch that the last pass began with
        self._begun_at, self._repeats = -_SHORT, 0

    def batch(self, training: Sampled, iterator: Any, batch: Any) -> None:
        """A batch to learn from, if one is due."""
        budget, step = training.budget, training.step
        begins = getattr(iterator, "_num_yielded", 0) == 1 and step - self._begun_at >= _SHORT
        if begins or (step >= budget.luxuries[TRAIN].next_step and budget.due(TRAIN, step)):
            begun = time.perf_counter()
            repeats = self._pass_begins(step, batch) if begins else MISSING_INT
            self._look(training, "train", self._source_of(iterator), _dataset_of(iterator), batch, repeats)
            training.charge(TRAIN, begun)

    def _pass_begins(self, step: int, batch: Any) -> int:
        """How many passes in a row have begun with this very batch, in this very order."""
        field = next((numbers for _, numbers in _fields(batch) if numbers.shape[1] > 1), None)
        marks = [] if field is None else [hash(row.tobytes()) for row in field]
        same = len(marks) > 1 and marks == self._first
        self._first, self._begun_at, self._repeats = marks, step, self._repeats + 1 if same else 0
        return self._repeats

    def held_out(self, training: Sampled, iterator: Any, batch: Any) -> None:
        """A batch of an evaluation: the first from each data set, if it is due."""
        step, known = training.step, self._looked_at
        if known[0] != step:
            if step < training.budget.luxuries[HELD_OUT].next_step or not training.budget.due(HELD_OUT, step):
                return
            known = self._looked_at = (step, set())
        source = self._source_of(iterator)
        if source in known[1] or len(known[1]) >= _SOURCES:
            return
        known[1].add(source)
        begun = time.perf_counter()
        self._look(training, "val", source, self._main(), batch)
        training.charge(HELD_OUT, begun)

    def _look(self, training: Sampled, split: str, source: int, dataset: Any, batch: Any, repeats: int = MISSING_INT) -> None:
        code, table = training.recorder.strings.code, training.recorder.table("inputs")
        for name, numbers in _fields(batch):
            marks = [hash(row.tobytes()) for row in numbers]
            is_sample = numbers.shape[1] > 1  # a single number comes again and again
            seen = self._marks.setdefault(name, set())
            known = sum(mark in seen for mark in marks) if is_sample else MISSING_INT
            if is_sample and split == "train" and len(seen) < _MARKS:
                seen.update(marks)
            is_new = split == "train" and repeats <= 0  # a batch that comes again and again would count too often
            entropy = self._entropy(name, numbers, add=is_new) if numbers.dtype.kind in "iu" else MISSING
            values = numbers.astype(np.float64)
            of = [float(values.mean()), float(values.std()), float(values.min()), float(values.max())]
            counts = (len(marks), len(set(marks)), known)
            rest = (entropy, _share(len(seen), dataset), repeats)
            table.append((training.step, code(split), source, code(name), *of, *counts, *rest))

    def _entropy(self, name: str, numbers: Any, *, add: bool) -> float:
        """The loss of always saying how often each whole number came so far, in nats; those below zero mark what is ignored."""
        counts = self._classes.setdefault(name, {})
        if add and len(counts) <= _CLASSES:
            values, often = np.unique(numbers[numbers >= 0], return_counts=True)
            for value, count in zip(values.tolist(), often.tolist(), strict=True):
                counts[value] = counts.get(value, 0) + count
        if not 1 < len(counts) <= _CLASSES:
            return MISSING
        total = sum(counts.values())
        return -sum(count / total * math.log(count / total) for count in counts.values())

    def _source_of(self, iterator: Any) -> int:
        """The number of a data set; the first that was learned from is 0."""
        dataset = _dataset_of(iterator)
        for number, known in enumerate(self._sources):
            if (known() is dataset) if isinstance(known, weakref.ref) else (known == id(dataset)):
                return number
        try:
            self._sources.append(weakref.ref(dataset))
        except TypeError:
            self._sources.append(id(dataset))
        return len(self._sources) - 1

    def _main(self) -> Any:
        first = self._sources[0] if self._sources else None
        return first() if isinstance(first, weakref.ref) else None


def _share(count: int, dataset: Any) -> float:
    """The share of the training data of which marks are kept."""
    try:
        return count / max(1, len(dataset))
    except (TypeError, NotImplementedError):
        return MISSING


def _dataset_of(iterator: Any) -> Any:
    return getattr(iterator, "_dataset", None)


def _fields(batch: Any) -> Iterator[tuple[str, Any]]:
    """Some numbers of some samples of each field, a row for each sample."""
    for name, value in islice(leaves(batch, depth=3), _FIELDS):
        if isinstance(value, torch.Tensor) and value.is_cpu and value.dim() > 0 and value.numel() > 0 and _is_plain(value):
            some = value.detach()[:_SAMPLES]
            if not some.is_contiguous() and some.numel() > _COPIED_AT_MOST:
                continue
            rows = some.reshape(len(some), -1)
            rows = rows[:, :: max(1, rows.shape[1] // _NUMBERS)]
            yield name, (rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows).numpy()


def _is_plain(value: torch.Tensor) -> bool:
    if value.is_sparse or value.layout is not torch.strided or value.is_quantized or value.is_complex():
        return False
    return value.dtype is not torch.bool and (not value.is_floating_point() or value.itemsize > 1)
