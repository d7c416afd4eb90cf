"""Keep the batches of the step in progress, with the dataset indices of their samples.

Batches are held by reference until their step is over, up to a byte limit. Indices are recorded as the loader draws them from
its sampler; workers fetch ahead, so they stay in that order until their batch arrives.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Subset
from torch.utils.data.dataloader import _DatasetKind

from holdfast.inside.observers.batch_contents import num_bytes
from holdfast.inside.observers.saved_batch import DrawnBatch
from holdfast.inside.taps.registry import Taps

_MAX_BYTES = 1 << 28
_MAX_BATCHES = 256  # of one step
_KEPT_INDEX_LISTS = 64  # whose batch has arrived already
_LEARNED = -1


class _SampledIndices:
    """The index lists that one iterator drew from its sampler, and how far it reads ahead of the steps."""

    __slots__ = ("ahead", "before_first_step", "drawn", "first", "lists", "sampler")

    def __init__(self, ahead: int) -> None:
        self.sampler: Any = None
        self.lists: deque[Any] = deque()
        self.first = 0  # position of the oldest list that is kept
        self.drawn = 0
        self.before_first_step: int | None = None  # batches drawn before the first step of the pass; _LEARNED: `ahead` is known
        self.ahead = ahead

    def add(self, sampler: Any, indices: Any) -> None:
        if sampler is not self.sampler:  # persistent workers: the same iterator starts another pass
            self.sampler, self.first = sampler, 0
            self.lists.clear()
        self.lists.append(indices)

    def of_batch(self, iterator: Any) -> list[Any] | None:
        """The indices of the batch that has just arrived; None where the loader does not keep the order."""
        if not getattr(iterator, "_in_order", True):
            return None
        received = getattr(iterator, "_rcvd_idx", None)  # workers number their batches; without workers it is the last list
        position = self.first + len(self.lists) - 1 if received is None else int(received) - 1
        while self.lists and self.first < position - _KEPT_INDEX_LISTS:
            self.lists.popleft()
            self.first += 1
        offset = position - self.first
        if not 0 <= offset < len(self.lists):
            return None
        indices = self.lists[offset]
        return indices if isinstance(indices, list) else list(indices) if isinstance(indices, tuple) else [indices]

    @property
    def is_in_step(self) -> bool:
        """Whether every step is known to draw its own batches, none ahead."""
        return self.before_first_step == _LEARNED and not self.ahead


class Batches:
    """The batches of the step in progress."""

    def __init__(self, sampled: weakref.WeakKeyDictionary[Any, _SampledIndices] | None = None) -> None:
        self.sampled = weakref.WeakKeyDictionary[Any, _SampledIndices]() if sampled is None else sampled
        self._since_step: list[DrawnBatch] = []
        self._carried: list[DrawnBatch] = []  # drawn before the last step, for the one in progress
        self._ahead = 0
        self._bytes = 0
        self._num_unsampled = 0  # batches that came from no DataLoader

    def install(self, taps: Taps) -> None:
        """Record the indices that loaders draw from their samplers."""
        taps.wrap("torch.utils.data.dataloader._BaseDataLoaderIter._next_index", self._wrap_next_index)

    def _wrap_next_index(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _next_index(iterator: Any) -> Any:
            indices = original(iterator)
            if iterator._dataset_kind == _DatasetKind.Map:
                self._sampled_of(iterator).add(iterator._sampler_iter, indices)
            return indices

        return _next_index

    def note(self, iterator: Any, batch: Any) -> None:
        """Keep a training batch; `iterator` is None where it did not come from a `DataLoader`."""
        if len(self._since_step) >= _MAX_BATCHES:
            del self._since_step[0]
        batch = batch.copy() if type(batch) in (dict, list) else batch  # scripts pop the labels
        if iterator is None:
            drawn = DrawnBatch(batch, None, None, self._num_unsampled, rng_state=_rng_state())
            self._num_unsampled += 1
        else:
            sampled = self._sampled_of(iterator)
            sampled.drawn += 1
            dataset, position = iterator._dataset, max(getattr(iterator, "_num_yielded", 1) - 1, 0)
            indices = sampled.of_batch(iterator)
            dataset_indices = _below_subsets(dataset, indices) if isinstance(dataset, Subset) else indices
            drawn = DrawnBatch(batch, indices, dataset_indices, position, 0, type(dataset).__qualname__, _rng_state(), sampled)
        self._since_step.append(drawn)
        if len(self._since_step) + len(self._carried) > 1:  # a single batch is kept whatever its size
            self._bytes += num_bytes(batch)
            if self._bytes > _MAX_BYTES:
                self._drop_oldest()

    def current(self) -> list[DrawnBatch]:
        """The batches of the step in progress, in the order they were drawn."""
        ahead = self._read_ahead()
        entries = [*self._carried, *self._since_step] if ahead or not self._since_step else self._since_step
        if ahead and self._since_step and len(entries) > ahead:  # at the end of a pass nothing is read ahead
            entries = entries[:-ahead]
        loaders: dict[int, int] = {}
        for drawn in entries:
            drawn.loader = loaders.setdefault(id(drawn.sampled), len(loaders))
        return list(entries)

    def end_step(self) -> None:
        """Release the batches of the finished step, except those read ahead."""
        since, carried = self._since_step, self._carried
        if not carried and (not since or (len(since) == 1 and ((sampled := since[0].sampled) is None or sampled.is_in_step))):
            since.clear()  # the common step
            return
        ahead = self._read_ahead()
        may_be_ahead = self._learn_ahead(len(since))
        self._carried = since[-1:] if ahead or may_be_ahead else []
        self._since_step = []
        self._bytes = sum(num_bytes(drawn.batch) for drawn in self._carried)

    def _sampled_of(self, iterator: Any) -> _SampledIndices:
        sampled = self.sampled.get(iterator)
        if sampled is None:
            sampled = self.sampled[iterator] = _SampledIndices(self._ahead)
        return sampled

    def _newest_sampled(self) -> _SampledIndices | None:
        entries = self._since_step or self._carried
        return entries[-1].sampled if entries else None

    def _read_ahead(self) -> int:
        """How many batches the loader is ahead of the step (Accelerate and Transformers: 1); known from a pass's second step."""
        sampled = self._newest_sampled()
        if sampled is None:
            return 0
        if sampled.before_first_step is not None and sampled.before_first_step > 0 and self._since_step:
            return int(sampled.before_first_step == len(self._since_step) + 1)
        return sampled.ahead

    def _learn_ahead(self, count: int) -> bool:
        """Compare the first two steps of a pass; whether the last batch may belong to the next step."""
        sampled = self._newest_sampled()
        if sampled is None or sampled.before_first_step == _LEARNED:
            return False
        if sampled.before_first_step is None:
            sampled.before_first_step = sampled.drawn
            return sampled.drawn > 1
        if count:
            sampled.ahead = self._ahead = int(sampled.before_first_step == count + 1)
            sampled.before_first_step = _LEARNED
        return False

    def _drop_oldest(self) -> None:
        """Release the values of the oldest batches; the newest is always kept."""
        batches = [*self._carried, *self._since_step]
        self._bytes = sum(num_bytes(drawn.batch) for drawn in batches)
        for drawn in batches[:-1]:
            if self._bytes > _MAX_BYTES:
                self._bytes -= num_bytes(drawn.batch)
                drawn.batch = None


def _below_subsets(dataset: Any, indices: list[Any] | None) -> list[Any] | None:
    while indices is not None and isinstance(dataset, Subset):
        try:
            indices = [int(dataset.indices[index]) for index in indices]
        except (TypeError, ValueError, IndexError, KeyError):
            return None
        dataset = dataset.dataset
    return indices


def _rng_state() -> dict[str, Any]:
    state: dict[str, Any] = {"torch": torch.default_generator.get_state()}
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        state["cuda"] = {torch.cuda.current_device(): torch.cuda.get_rng_state()}
    return state
