"""The position of a training in its data, so that it can continue with the very next batch.

    batches = Position(loader)
    for batch in batches:
        ...                       # batches.state_dict() works at any time
    batches.load_state_dict(...)  # in another process: the next pass continues from there

At the start of a pass it records the generators that decide the order and the workers' seeds, and it counts the batches handed
out, not those prefetched by workers. To continue, it starts the pass with those generators, fast-forwards, and sets the
process's generators to what they were when the state was read.

What cannot be repeated: random numbers drawn in workers that persist across passes (a warning tells), and the order of a sampler
or stream that draws from the process's generators during the pass, without workers, as the training does too.
"""

from __future__ import annotations

import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch

from holdfast.errors import CannotRestore
from holdfast.state import fast_forward
from holdfast.state.generators import LoaderGenerators, set_process_generators
from holdfast.state.ranks import current_rank, world_size
from holdfast.state.values import Tree, weak_reference

Batch = TypeVar("Batch")
_FORMAT = 1
_OWN_REFERENCES = 2  # to a loader that only a position holds: its own, and getrefcount's argument
_SAME = ("kind", "data set", "samples", "batches", "batch size", "ranks")


def _warn(text: str) -> None:
    warnings.warn(f"holdfast: {text}", stacklevel=4)


class Position(Generic[Batch]):
    """A loader (or any iterable) and the position in it. Iterate over this instead of the loader.

    With `fast` used samples are skipped in the sampler and not loaded: correct if a sample does not depend on those before it, so
    not with random augmentation in workers.
    """

    def __init__(
        self,
        loader: Any,
        *,
        fast: bool = False,
        keep: bool = True,
        warn: Callable[[str], None] = _warn,
        on_batch: Callable[[Any, float], object] | None = None,
        on_end: Callable[[], object] | None = None,
        on_ask: Callable[[], object] | None = None,
    ) -> None:
        self._keep = keep
        self.loader = loader
        self.fast = fast
        self.passes = 0  # that are finished
        self.batches = 0  # handed out in the current pass
        self._warn, self._on_batch, self._on_end, self._on_ask = warn, on_batch, on_end, on_ask
        self._started = 0  # passes in this process
        self._open, self._left = False, False  # left: a pass that the script broke off; the next one starts anew
        self._generators: LoaderGenerators | None = None
        self._begin: Tree | None = None
        self._pending: Tree | None = None  # a loaded state to continue from
        self._counted = False  # by a loop that restores no generators itself

    @property
    def loader(self) -> Any:
        """The loader; None if it was deleted."""
        return self._loader()

    @loader.setter
    def loader(self, loader: Any) -> None:
        self._loader: Callable[[], Any] = (lambda: loader) if self._keep else weak_reference(loader)
        self.like = fast_forward.describe(loader)

    def is_unused(self) -> bool:
        """Whether the script no longer holds the loader, so that a similar one takes its place."""
        is_weak = isinstance(self._loader, weakref.ReferenceType)
        only_ours = not is_weak and sys.getrefcount(self.loader) <= _OWN_REFERENCES
        return not self._open and (self.loader is None or only_ours)

    @property
    def done(self) -> int:
        """Batches handed out in the current pass; before the first one, those to fast-forward."""
        pending = self._pending
        return int(pending["batches"]) if pending is not None and pending["under_way"] else self.batches

    def __iter__(self) -> Pass[Batch]:
        return Pass(self)

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def sampler(self) -> Any:
        """The loader's sampler: trainers set its epoch."""
        return getattr(self.loader, "sampler", None)

    @property
    def batch_sampler(self) -> Any:
        """The loader's batch sampler: trainers set its epoch."""
        return getattr(self.loader, "batch_sampler", None)

    # Saving

    def state_dict(self) -> Tree:
        """The position in plain containers and tensors."""
        if self._pending is not None:  # no batch was drawn since it was loaded
            return self._pending
        under_way = self._open or (self._left and sys.exc_info()[0] is not None)  # the exception that ended it is being handled
        own = _own_state(self.loader) if under_way or not self._left else None
        generators = self._generators or LoaderGenerators(self.loader)
        return {
            "format": _FORMAT,
            "like": {**self.like, "ranks": world_size()},
            "passes": self.passes + (self._left and not under_way),
            "batches": self.batches if under_way else 0,
            "under_way": under_way,
            "begin": self._begin if under_way and own is None else None,
            "now": generators.read(),
            "own": own,
        }

    def load_state_dict(self, state: Tree, *, counted: bool = False) -> None:
        """Continue from a state with the next pass. Raises CannotRestore if the loader differs.

        `counted`: the loop counts batches and never asks for the end of a pass, as trainers do. A pass whose last batch was drawn
        is over then, and the process's generators are restored between two passes as well.
        """
        if counted and state["under_way"] and state["batches"] == self.like["batches"]:
            state = {**state, "passes": int(state["passes"]) + 1, "batches": 0, "under_way": False}
        if state["under_way"] and state["own"] is None:
            if state["begin"] is None:
                raise _changed("the state of its sampler was not saved")
            state = self._adapted(state)
        self._pending, self._left, self._open, self._counted = state, False, False, counted
        self.passes, self.batches = int(state["passes"]), 0
        self._started += 1  # a pass still held by the script no longer counts

    # Continuing

    def draw(self, loader: Any) -> Iterator[Batch]:
        """One pass over the loader, which advances the position."""
        if self._left:
            self.passes += 1
        self._started += 1
        number, self._left = self._started, False
        iterator = self._iterator(loader)
        self._open = True
        try:
            while True:
                start = time.perf_counter()
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                if number == self._started:
                    self.batches += 1
                if self._on_batch is not None:
                    self._on_batch(batch, time.perf_counter() - start)
                yield batch
                if self._on_ask is not None:  # for another batch: the update with the last one is made
                    self._on_ask()
            if number == self._started:
                self._open, self.passes, self.batches, self._generators = False, self.passes + 1, 0, None
            if self._on_end is not None:
                self._on_end()
        finally:
            if number == self._started and self._open:
                self._open, self._left = False, True

    def _iterator(self, loader: Any) -> Any:
        saved, self._pending = self._pending, None
        self._generators = generators = LoaderGenerators(loader)
        self.batches = 0
        if saved is None:
            self._begin = self._read(generators)
            return iter(loader)
        if saved["own"] is not None:
            loader.load_state_dict(saved["own"])
            iterator = iter(loader)
            self.batches = int(saved["batches"])
            if saved["under_way"]:
                generators.set(saved["now"])
            return iterator
        if saved["under_way"]:
            return self._fast_forward(loader, generators, saved)
        generators.set_for_next_pass(saved["now"])
        if self._counted:
            set_process_generators(saved["now"]["process"])
        self._begin = generators.read(samplers=True)
        return fast_forward.begin_pass(loader, generators, self._begin, count=0, skips=False, first_ever=not self.passes)

    def _read(self, generators: LoaderGenerators) -> Tree | None:
        """The state that decides the new pass; None if a sampler raises, and the pass cannot be repeated."""
        try:
            return generators.read(samplers=True)
        except Exception as error:  # noqa: BLE001 - `state_dict` of a user's sampler
            self._warn(f"the position in the data is not saved: {type(error).__name__}: {error}")
            return None

    def _fast_forward(self, loader: Any, generators: LoaderGenerators, saved: Tree) -> Any:
        count, self._begin = int(saved["batches"]), saved["begin"]
        skips = fast_forward.can_skip(loader) if self.fast else fast_forward.is_deterministic(loader)
        first = not self.passes
        try:
            iterator = fast_forward.begin_pass(loader, generators, saved["begin"], count=count, skips=skips, first_ever=first)
        except StopIteration:
            raise _changed(f"the pass had more than {count} batches and has fewer now") from None
        generators.set(saved["now"])
        self.batches = count
        self._warn_differences(loader, saved["like"]["workers"])
        return iterator

    def _is_independent(self, loader: Any) -> bool:
        """Whether a sample is the same whatever was drawn before: of known data sets, and where the script says so."""
        return self.fast or fast_forward.is_deterministic(loader)

    def _warn_differences(self, loader: Any, workers_before: int) -> None:
        """Warn about random augmentation that differs from an uninterrupted training."""
        workers = getattr(loader, "num_workers", 0)
        if self._is_independent(loader):
            return
        if workers != workers_before:
            self._warn(
                f"the data continues in the same order, but with {workers} workers instead of {workers_before}: "
                "random augmentation differs"
            )
        elif self.passes and fast_forward.keeps_workers(loader):
            self._warn(
                "the data continues in the same order, but persistent_workers keep their random generators from pass to pass, "
                "and those are lost: random augmentation differs. With persistent_workers=False it is bit-equal"
            )

    def _adapted(self, state: Tree) -> Tree:
        """The state, adapted if the same data is now split over another number of ranks."""
        before, now = state["like"], {**self.like, "ranks": world_size()}
        different = [name for name in _SAME if before[name] != now[name]]
        count = _redistributed(before, now, int(state["batches"]))
        if different and "ranks" in different and count is not None:
            if not self._is_independent(self.loader):
                self._warn(
                    f"the data continues where {before['ranks']} ranks stopped, now with {now['ranks']}, in the same order; "
                    "random augmentation differs"
                )
            current = LoaderGenerators(self.loader).read()
            begin = {**current, "generators": {}, "epochs": state["begin"]["epochs"]}
            return {**state, "like": now, "batches": count, "begin": begin, "now": {**current, "epochs": {}}}
        if different:
            raise _changed("; ".join(f"{name}: {before[name]} -> {now[name]}" for name in different))
        return state


class Pass(Generic[Batch]):
    """One pass over a loader; `enumerate(batches, batches.done)` continues the count of batches."""

    def __init__(self, position: Position[Batch]) -> None:
        self._position, self._batches = position, position.draw(position.loader)

    @property
    def done(self) -> int:
        """Batches of this pass that were handed out or will be fast-forwarded."""
        return self._position.done

    def __iter__(self) -> Pass[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)


class Positions:
    """The position of each loader passed to `run.batches`.

    A loader is recognised by identity, or by its description once it is deleted; after a restart by the order of first use.
    """

    def __init__(
        self, *, warn: Callable[[str], None], on_batch: Callable[[Any, float], object], on_end: Callable[[], object]
    ) -> None:
        self._warn, self._on_batch, self._on_end = warn, on_batch, on_end
        self._positions: list[Position[Any]] = []
        self._pending: list[Tree] = []

    def of(self, loader: Any, *, fast: bool, timed: bool) -> Position[Any]:
        """The position in a loader. Raises CannotRestore if the saved one is of a different loader."""
        position = next((p for p in self._positions if p.loader is loader), None)
        if position is None:
            like = fast_forward.describe(loader)
            position = next((p for p in self._positions if p.is_unused() and p.like == like), None)
            if position is not None:
                position.loader = loader
        if position is None:
            on_batch, on_end = (self._on_batch, self._on_end) if timed else (None, None)
            position = Position(loader, keep=False, warn=self._warn, on_batch=on_batch, on_end=on_end)
            index = len(self._positions)
            if index < len(self._pending):
                position.load_state_dict(self._pending[index])
            self._positions.append(position)
        position.fast = fast
        return position

    @property
    def passes(self) -> int | None:
        """Finished passes over the first loader; None if there is none."""
        if self._positions:
            return self._positions[0].passes
        return int(self._pending[0]["passes"]) if self._pending else None

    def state_dict(self) -> Tree:
        """The positions in plain containers and tensors; for loaders not used yet, the loaded ones."""
        states = [position.state_dict() for position in self._positions]
        return {"loaders": [*states, *self._pending[len(states) :]]}

    def load_state_dict(self, state: Tree) -> None:
        """Continue from these positions with the next pass over each loader."""
        self._pending = list(state["loaders"])
        for position, saved in zip(self._positions, self._pending, strict=False):
            position.load_state_dict(saved)


def read_positions(positions: Iterable[Position[Any]]) -> list[list[Any]]:
    """The positions in the data of each rank, whose random generators differ; called on all of them when a trainer saves."""
    every = [[position.state_dict() for position in positions]]
    if world_size() > 1 and torch.distributed.is_initialized():
        own, every = every[0], [[] for _ in range(world_size())]
        torch.distributed.all_gather_object(every, own)
    return every


def set_positions(positions: Iterable[Position[Any]], saved: list[list[Any]], *, counted: bool = False) -> None:
    """Restore the positions of this rank, if some were saved; with another number of ranks than before, those of the first."""
    own = saved[current_rank() if len(saved) == world_size() else 0] if saved else ()
    for position, state in zip(positions, own, strict=False):
        position.load_state_dict(state, counted=counted)


def _redistributed(before: Tree, now: Tree, batches: int) -> int | None:
    """The batches that each rank has now done, if a DistributedSampler splits one common order."""
    same = all(before[name] == now[name] for name in ("kind", "data set", "samples", "sampler"))
    sizes = before["batch size"], now["batch size"]
    if not same or now["sampler"] != "DistributedSampler" or None in sizes:
        return None
    used, per_batch = batches * before["ranks"] * sizes[0], now["ranks"] * sizes[1]
    return used // per_batch if used % per_batch == 0 else None


def _own_state(loader: Any) -> Any:
    """The state dict of a stateful loader; None for any other."""
    if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
        return None
    try:
        return loader.state_dict()
    except (AttributeError, NotImplementedError):  # a wrapper around a stateless loader
        return None


def _changed(what: str) -> CannotRestore:
    return CannotRestore(
        f"The data has changed since the checkpoint was saved in the middle of a pass ({what}).",
        fix="use the same loader; to start a new pass instead, restore with data=False",
    )
