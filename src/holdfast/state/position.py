"""The position of a training in its data, so that it can continue with the very next batch.

    batches = Position(loader)
    for batch in batches:
        ...                       # batches.state_dict() works at any time
    batches.load_state_dict(...)  # in another process: the next pass continues from there

At the beginning of a pass it records the generators that decide its order and the seeds of the workers, and it counts the
batches that are handed out; what workers have fetched ahead does not count. To continue, it begins the pass with those
generators, fast-forwards, and sets the process's generators to what they were when the state was read.

What cannot be repeated, and is warned about: random numbers drawn in workers that persist across passes, and the order of a
sampler or a stream that draws from the process's own generators as it goes, without workers, beside a training that draws
from them too.
"""

from __future__ import annotations

import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from holdfast.errors import CannotRestore
from holdfast.state import fast_forward
from holdfast.state.fast_forward import BatchCheck
from holdfast.state.generators import LoaderGenerators
from holdfast.state.ranks import world_size
from holdfast.state.values import Tree, weak_reference

Batch = TypeVar("Batch")
_FORMAT = 1
_SLOW = 20.0  # seconds of fast-forward, after which a faster way is suggested
_OWN_REFERENCES = 2  # to a loader that only a position holds: its own, and that of the count
_SAME = ("kind", "data set", "samples", "batches", "batch size", "ranks")


def _warn(text: str) -> None:
    warnings.warn(f"holdfast: {text}", stacklevel=4)


class Position(Generic[Batch]):
    """A loader (or anything that can be iterated) and the place in it. Iterate over this instead of the loader.

    With `fast` what was used is skipped in the sampler and not loaded: correct where a sample does not depend on what was drawn
    before it, so not with random augmentation in workers.
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
    ) -> None:
        self._keep = keep
        self.loader = loader
        self.fast = fast
        self.passes = 0  # that are finished
        self.batches = 0  # handed out in the current pass
        self._warn, self._on_batch, self._on_end = warn, on_batch, on_end
        self._begun = 0  # passes in this process
        self._open, self._left = False, False  # a pass that was left: the next one begins anew
        self._generators: LoaderGenerators | None = None
        self._begin: Tree | None = None
        self._last: int | None = None
        self._waiting: Tree | None = None  # a state to continue from

    @property
    def loader(self) -> Any:
        """The loader; None if it is gone."""
        return self._loader()

    @loader.setter
    def loader(self, loader: Any) -> None:
        self._loader: Callable[[], Any] = (lambda: loader) if self._keep else weak_reference(loader)
        self.like = fast_forward.describe(loader)

    @property
    def holds_it(self) -> bool:
        """Whether the loader lives on because of this; most are held weakly."""
        return not isinstance(self._loader, weakref.ReferenceType)

    @property
    def is_open(self) -> bool:
        """Whether a pass is under way."""
        return self._open

    @property
    def done(self) -> int:
        """Batches of the current pass that were handed out; before the first one, those to fast-forward."""
        waiting = self._waiting
        return int(waiting["batches"]) if waiting is not None and waiting["under_way"] else self.batches

    def __iter__(self) -> Pass[Batch]:
        return Pass(self)

    def __len__(self) -> int:
        return len(self.loader)

    # Saving

    def state_dict(self) -> Tree:
        """The position in plain containers and tensors."""
        if self._waiting is not None:  # nothing was drawn since it was loaded
            return self._waiting
        under_way = self._open or (self._left and sys.exc_info()[0] is not None)  # what ended it is being handled now
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
            "last": self._last,
            "own": own,
        }

    def load_state_dict(self, state: Tree) -> None:
        """Continue from there with the next pass. Raises CannotRestore if this is not the loader that it was."""
        if state["under_way"] and state["own"] is None:
            if state["begin"] is None:
                raise _changed("what decided the order was not known even then")
            state = self._fitting(state)
        self._waiting, self._left, self._open = state, False, False
        self.passes, self.batches = int(state["passes"]), 0
        self._begun += 1  # a pass that someone still holds does not count any more

    # Continuing

    def draw(self, loader: Any) -> Iterator[Batch]:
        """One pass over the loader; the position moves along."""
        if self._left:
            self.passes += 1
        self._begun += 1
        number, self._left = self._begun, False
        iterator, check = self._iterator(loader)
        self._open = True
        try:
            while True:
                asked = time.perf_counter()
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                if number == self._begun:
                    self.batches += 1
                    self._last = check.fingerprint(batch)
                if self._on_batch is not None:
                    self._on_batch(batch, time.perf_counter() - asked)
                yield batch
            if number == self._begun:
                self._open, self.passes, self.batches, self._generators = False, self.passes + 1, 0, None
            if self._on_end is not None:
                self._on_end()
        finally:
            if number == self._begun and self._open:
                self._open, self._left = False, True

    def _iterator(self, loader: Any) -> tuple[Any, BatchCheck]:
        saved, self._waiting = self._waiting, None
        self._generators = generators = LoaderGenerators(loader)
        self.batches = 0
        if saved is None:
            self._begin = self._read(generators)
            iterator: Any = iter(loader)
            return iterator, BatchCheck(loader, iterator)
        if saved["own"] is not None:
            iterator = self._from_loader_state(loader, saved)
            return iterator, BatchCheck(loader, iterator)
        if saved["under_way"]:
            return self._fast_forward(loader, saved)
        generators.set_for_next_pass(saved["now"])
        self._begin = generators.read(samplers=True)
        return fast_forward.begin_pass(loader, generators, self._begin, count=0, skips=False, first_ever=not self.passes)[:2]

    def _read(self, generators: LoaderGenerators) -> Tree | None:
        """What decides the pass that begins. None if a sampler raises: training continues, but this pass cannot be repeated."""
        try:
            return generators.read(samplers=True)
        except Exception as error:  # noqa: BLE001 - `state_dict` of someone's sampler
            self._warn(f"the position in the data is not saved: {type(error).__name__}: {error}")
            return None

    def _from_loader_state(self, loader: Any, saved: Tree) -> Any:
        """A loader with a state of its own continues by itself."""
        loader.load_state_dict(saved["own"])
        iterator = iter(loader)
        self.batches = int(saved["batches"])
        if saved["under_way"] and self._generators is not None:
            self._generators.set(saved["now"])
        return iterator

    def _fast_forward(self, loader: Any, saved: Tree) -> tuple[Any, BatchCheck]:
        assert self._generators is not None
        count, begin, begun = int(saved["batches"]), saved["begin"], time.perf_counter()
        skips = fast_forward.can_skip(loader) if self.fast else fast_forward.is_deterministic(loader)
        generators, first = self._generators, not self.passes
        try:
            iterator, check, last = fast_forward.begin_pass(loader, generators, begin, count=count, skips=skips, first_ever=first)
        except StopIteration:
            raise _changed(f"the pass had more than {count} batches and has fewer now") from None
        self._generators.set(saved["now"])
        self._begin, self.batches, self._last = begin, count, saved["last"]
        self._warn_differences(loader, saved, last, time.perf_counter() - begun)
        return iterator, check

    def _warn_differences(self, loader: Any, saved: Tree, last: int | None, seconds: float) -> None:
        """Warn about what differs from an uninterrupted training."""
        workers = getattr(loader, "num_workers", 0)
        if workers != saved["like"]["workers"] and not fast_forward.is_deterministic(loader):
            self._warn(
                f"the data continues in the same order, but with {workers} workers instead of {saved['like']['workers']}: "
                "random augmentation differs"
            )
        elif self.passes and fast_forward.keeps_generators(loader):
            self._warn(
                "the data continues in the same order, but persistent_workers keep their random generators from pass to pass, "
                "and those are gone: random augmentation differs. With persistent_workers=False it is bit-equal"
            )
        elif last is not None and saved["last"] is not None and last != saved["last"]:
            self._warn(
                f"the batches before this point ({saved['batches']} of the pass) differ from those of the first time: "
                "the order or the augmentation depends on something that is not restored. Give the sampler or the data set a "
                "generator of its own, or use workers"
            )
        if seconds > _SLOW and not self.fast:
            self._warn(
                f"fast-forwarding {saved['batches']} batches took {seconds:.0f} s. If no sample depends on those before it (no "
                "random augmentation in workers), use fast=True: nothing is loaded then"
            )

    def _fitting(self, state: Tree) -> Tree:
        """The state, if this is the loader that it was, or the same data shared out among another number of ranks."""
        before, now = state["like"], {**self.like, "ranks": world_size()}
        different = [name for name in _SAME if before[name] != now[name]]
        count = _redistributed(before, now, int(state["batches"]))
        if different and "ranks" in different and count is not None:
            self._warn(
                f"the data continues where {before['ranks']} ranks left it, now with {now['ranks']}, in the same order; "
                "random augmentation differs"
            )
            here = LoaderGenerators(self.loader).read()
            begin = {**here, "generators": {}, "epochs": state["begin"]["epochs"]}
            return {**state, "like": now, "batches": count, "begin": begin, "now": {**here, "epochs": {}}, "last": None}
        if different:
            raise _changed("; ".join(f"{name}: {before[name]} -> {now[name]}" for name in different))
        return state


class Pass(Generic[Batch]):
    """One pass over a loader, with the number of batches that are `done`: `enumerate(batches, batches.done)` counts on."""

    def __init__(self, position: Position[Batch]) -> None:
        self._position, self._batches = position, position.draw(position.loader)

    @property
    def done(self) -> int:
        """Batches of this pass that were handed out, or will be fast-forwarded."""
        return self._position.done

    def __iter__(self) -> Pass[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)


class Positions:
    """One position for each loader that `run.batches` was given.

    A loader is recognised by itself, or by its description once it is gone; after a restart by the order of first use.
    """

    def __init__(
        self, *, warn: Callable[[str], None], on_batch: Callable[[Any, float], object], on_end: Callable[[], object]
    ) -> None:
        self._warn, self._on_batch, self._on_end = warn, on_batch, on_end
        self._positions: list[Position[Any]] = []
        self._waiting: list[Tree] = []

    def of(self, loader: Any, *, fast: bool, timed: bool) -> Position[Any]:
        """The position in a loader. Raises CannotRestore if it should continue in the middle of a pass over another one."""
        position = next((one for one in self._positions if one.loader is loader), None)
        if position is None:
            like = fast_forward.describe(loader)
            position = next((one for one in self._positions if _is_gone(one) and one.like == like), None)
            if position is not None:
                position.loader = loader
        if position is None:
            on_batch, on_end = (self._on_batch, self._on_end) if timed else (None, None)
            position = Position(loader, keep=False, warn=self._warn, on_batch=on_batch, on_end=on_end)
            number = len(self._positions)
            if number < len(self._waiting):
                position.load_state_dict(self._waiting[number])
            self._positions.append(position)
        position.fast = fast
        return position

    @property
    def passes(self) -> int | None:
        """Finished passes over the first loader; None if there is none."""
        if self._positions:
            return self._positions[0].passes
        return int(self._waiting[0]["passes"]) if self._waiting else None

    def state_dict(self) -> Tree:
        """The positions, in plain containers and tensors; of loaders that were not used yet, what was loaded."""
        states = [position.state_dict() for position in self._positions]
        return {"loaders": [*states, *self._waiting[len(states) :]]}

    def load_state_dict(self, state: Tree) -> None:
        """Continue from there with the next pass over each."""
        self._waiting = list(state["loaders"])
        for position, saved in zip(self._positions, self._waiting, strict=False):
            position.load_state_dict(saved)


def _is_gone(position: Position[Any]) -> bool:
    """Whether the script no longer holds the loader: another one like it takes its place."""
    held_by_us_alone = position.holds_it and sys.getrefcount(position.loader) <= _OWN_REFERENCES
    return not position.is_open and (position.loader is None or held_by_us_alone)


def _redistributed(before: Tree, now: Tree, batches: int) -> int | None:
    """How many batches each rank now has behind it, if the ranks take turns in one order that they all know."""
    same = all(before[name] == now[name] for name in ("kind", "data set", "samples", "sampler"))
    sizes = before["batch size"], now["batch size"]
    if not same or now["sampler"] != "DistributedSampler" or None in sizes:
        return None
    used, at_once = batches * before["ranks"] * sizes[0], now["ranks"] * sizes[1]
    return used // at_once if used % at_once == 0 else None


def _own_state(loader: Any) -> Any:
    """What a loader that keeps its own state says; None for any other."""
    if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
        return None
    try:
        return loader.state_dict()
    except (AttributeError, NotImplementedError):  # a wrapper that has it only if what it wraps does
        return None


def _changed(what: str) -> CannotRestore:
    return CannotRestore(
        f"The data is not what it was when the checkpoint was saved, in the middle of a pass ({what}).",
        fix="give it the same loader; to begin a new pass instead, restore with data=False",
    )
