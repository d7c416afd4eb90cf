"""Which batches a step was made of: what was drawn since the last one, with the indices of its samples.

Batches are held by reference until their step is over, up to a limit of bytes. Indices come from the loader's own sampler as
it is asked for them; workers fetch ahead, so they are kept in the order of asking until the batch arrives.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import Subset
from torch.utils.data.dataloader import _DatasetKind

from holdfast.inside.observers.batch_contents import look_at_input, size_of
from holdfast.inside.observers.saved_batch import Drawn, SavedBatches, save_batches
from holdfast.inside.taps.registry import Taps

__all__ = ["Batches", "Drawn", "look_at_input"]
_REMEMBERED_BYTES = 1 << 28
_REMEMBERED = 256  # batches of one step
_KNOWN = -1  # it was seen how far ahead batches are drawn
_BEHIND = 64  # index lists that are kept although their batch has come


class _Asked:
    """The index lists that one iterator has asked its sampler for, and how far it reads ahead of the steps."""

    __slots__ = ("ahead", "begun", "drawn", "first", "lists", "sampler")

    def __init__(self, ahead: int) -> None:
        self.sampler: Any = None
        self.lists: deque[Any] = deque()
        self.first = 0  # position of the oldest list that is kept
        self.drawn = 0
        self.begun: int | None = None  # batches drawn up to the first step of the pass
        self.ahead = ahead

    def add(self, sampler: Any, indices: Any) -> None:
        if sampler is not self.sampler:  # the same iterator begins another pass (persistent workers)
            self.sampler, self.first = sampler, 0
            self.lists.clear()
        self.lists.append(indices)

    def take(self, position: int) -> Any:
        while self.lists and self.first < position - _BEHIND:
            self.lists.popleft()
            self.first += 1
        place = position - self.first
        return self.lists[place] if 0 <= place < len(self.lists) else None

    @property
    def is_even(self) -> bool:
        """Whether it is known that every step draws its own."""
        return self.begun == _KNOWN and not self.ahead

    @property
    def newest(self) -> int:
        return self.first + len(self.lists) - 1


class _Noted(NamedTuple):
    """A batch that was drawn, by whom, and what is known of the drawing; both None where it came from no loader of torch."""

    drawn: Drawn
    iterator: weakref.ref[Any] | None
    asked: _Asked | None


class Batches:
    """The batches of the step under way."""

    look_at_input = staticmethod(look_at_input)

    def __init__(self, asked: weakref.WeakKeyDictionary[Any, _Asked] | None = None) -> None:
        self.asked: weakref.WeakKeyDictionary[Any, _Asked] = weakref.WeakKeyDictionary() if asked is None else asked
        self._since: list[_Noted] = []
        self._kept: list[_Noted] = []  # drawn before the last step, for the one under way
        self._ahead = 0
        self._bytes = 0
        self._others = 0  # batches that came from no loader of torch

    def install(self, taps: Taps) -> None:
        """Listen to what loaders ask their samplers for."""
        taps.wrap("torch.utils.data.dataloader._BaseDataLoaderIter._next_index", self._listening)

    def _listening(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _next_index(iterator: Any) -> Any:
            indices = original(iterator)
            if iterator._dataset_kind == _DatasetKind.Map:
                self._of(iterator).add(iterator._sampler_iter, indices)
            return indices

        return _next_index

    def note(self, iterator: Any, batch: Any) -> None:
        """Take in a training batch; `iterator` is None where it did not come from a `DataLoader`."""
        if len(self._since) >= _REMEMBERED:
            del self._since[0]
        batch = batch.copy() if type(batch) in (dict, list) else batch  # scripts pop their labels out of theirs
        if iterator is None:
            self._since.append(_Noted(Drawn(batch, None, None, self._others, randomness=_randomness()), None, None))
            self._others += 1
        else:
            asked = self._of(iterator)
            asked.drawn += 1
            dataset, position = iterator._dataset, max(getattr(iterator, "_num_yielded", 1) - 1, 0)
            indices = _found(iterator, asked, _place_of(iterator, asked))
            under = _under_subsets(dataset, indices) if isinstance(dataset, Subset) else indices
            drawn = Drawn(batch, indices, under, position, 0, type(dataset).__qualname__, _randomness())
            self._since.append(_Noted(drawn, weakref.ref(iterator), asked))
        if len(self._since) + len(self._kept) > 1:  # one alone is kept whatever its size
            self._bytes += size_of(batch)
            if self._bytes > _REMEMBERED_BYTES:
                self._forget_some()

    def indices_of(self, iterator: Any, position: int) -> list[Any] | None:
        """The samples of a batch by its place in the order of asking; None where the loader cannot say."""
        asked = self.asked.get(iterator)
        return _found(iterator, asked, position) if asked is not None else None

    def current(self) -> list[Drawn]:
        """The batches of the step under way, in the order they were drawn."""
        ahead = self._read_ahead()
        found = [*self._kept, *self._since] if ahead or not self._since else list(self._since)
        if ahead and self._since and len(found) > ahead:  # at the end of a pass nothing is read ahead
            found = found[:-ahead]
        loaders: dict[int, int] = {}
        for drawn, reference, _ in found:
            drawn.loader = loaders.setdefault(id(reference() if reference is not None else None), len(loaders))
        return [drawn for drawn, _, _ in found]

    def end_step(self) -> None:
        """The step is over: its batches are let go, except for those read ahead."""
        since, kept = self._since, self._kept
        if not kept and (not since or (len(since) == 1 and ((asked := since[0].asked) is None or asked.is_even))):
            since.clear()  # the common step
            return
        ahead = self._read_ahead()
        may_be = self._learn(len(since))
        self._kept = since[-1:] if ahead or may_be else []
        self._since = []
        self._bytes = sum(size_of(noted.drawn.batch) for noted in self._kept)

    def save(
        self,
        folder: Path,
        step: int,
        state: Mapping[str, Any],
        randomness: Mapping[str, Any],
        run_later: Callable[[Callable[[], None]], None],
        *,
        scale: float | None = None,
    ) -> SavedBatches:
        """Keep the batches of this step and the model's state as `step-000123.pt`, to be replayed. Values are copied at once."""
        return save_batches(folder, step, self.current(), state=state, randomness=randomness, run_later=run_later, scale=scale)

    def _of(self, iterator: Any) -> _Asked:
        asked = self.asked.get(iterator)
        if asked is None:
            asked = self.asked[iterator] = _Asked(self._ahead)
        return asked

    def _drawing(self) -> _Asked | None:
        return self._since[-1].asked if self._since else self._kept[-1].asked if self._kept else None

    def _read_ahead(self) -> int:
        """How many batches who draws is ahead of who trains (Accelerate, Transformers: one); seen at a pass's second step."""
        asked = self._drawing()
        if asked is None:
            return 0
        if asked.begun is not None and asked.begun > 0 and self._since:
            return int(asked.begun == len(self._since) + 1)
        return asked.ahead

    def _learn(self, count: int) -> bool:
        """Compare the first step of a pass with the second; whether the last batch may belong to the next step."""
        asked = self._drawing()
        if asked is None or asked.begun == _KNOWN:
            return False
        if asked.begun is None:
            asked.begun = asked.drawn
            return asked.drawn > 1
        if count:
            asked.ahead = self._ahead = int(asked.begun == count + 1)
            asked.begun = _KNOWN
        return False

    def _forget_some(self) -> None:
        """Let go of the values of the oldest batches; the newest is always kept."""
        held = [noted.drawn for noted in (*self._kept, *self._since)]
        self._bytes = sum(size_of(drawn.batch) for drawn in held)
        for drawn in held[:-1]:
            if self._bytes > _REMEMBERED_BYTES:
                self._bytes -= size_of(drawn.batch)
                drawn.batch = None


def _place_of(iterator: Any, asked: _Asked) -> int:
    """Which of the index lists this batch is. Workers number theirs; without workers it is the last that was asked for."""
    received = getattr(iterator, "_rcvd_idx", None)
    return asked.newest if received is None else int(received) - 1


def _found(iterator: Any, asked: _Asked, position: int) -> list[Any] | None:
    if not getattr(iterator, "_in_order", True):  # batches come as they are ready: which is which?
        return None
    found = asked.take(position)
    return found if found is None or isinstance(found, list) else list(found) if isinstance(found, tuple) else [found]


def _under_subsets(dataset: Any, indices: list[Any] | None) -> list[Any] | None:
    while indices is not None and isinstance(dataset, Subset):
        try:
            indices = [int(dataset.indices[index]) for index in indices]
        except (TypeError, ValueError, IndexError, KeyError):
            return None
        dataset = dataset.dataset
    return indices


def _randomness() -> dict[str, Any]:
    state: dict[str, Any] = {"torch": torch.default_generator.get_state()}
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        state["cuda"] = {torch.cuda.current_device(): torch.cuda.get_rng_state()}
    return state
