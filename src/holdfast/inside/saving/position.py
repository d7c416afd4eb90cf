"""Where a training stands in its data, so that it can go on with the very next batch.

    batches = Position(loader)
    for batch in batches:
        ...                       # batches.state_dict() may be asked at any time
    batches.load_state_dict(...)  # in another process: the next pass goes on from there

At the beginning of a pass it remembers the generators that decide its order and the seeds of the workers, and it counts the
batches that are handed out; what workers have fetched ahead does not count. To go on, it begins the pass with those
generators, goes past what was used, and sets the process's generators to what they were when the state was asked for.

What cannot come out the same, and is told: random numbers drawn in workers that live on across passes, and the order of a
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
from holdfast.inside.ranks import world_size
from holdfast.inside.saving import going_past
from holdfast.inside.saving.generators import Origins, Plain
from holdfast.inside.saving.going_past import Witness

Batch = TypeVar("Batch")
_FORMAT = 1
_SLOW = 20.0  # seconds of going past, from which on a faster way is told
_SAME = ("kind", "data set", "samples", "batches", "batch size", "ranks")


def warn(words: str) -> None:
    """Say something to whoever runs the script."""
    warnings.warn(f"holdfast: {words}", stacklevel=4)


class Position(Generic[Batch]):
    """A loader (or anything that can be iterated) and the place in it. Iterate over this instead of the loader.

    With `fast` what was used is skipped in the sampler and not loaded: right where a sample does not depend on what was drawn
    before it, so not with random augmentation in workers.
    """

    def __init__(
        self,
        loader: Any,
        *,
        fast: bool = False,
        keep: bool = True,
        say: Callable[[str], None] = warn,
        heard: Callable[[Any, float], object] | None = None,
        ended: Callable[[], object] | None = None,
    ) -> None:
        self._keep = keep
        self.loader = loader
        self.fast = fast
        self.passes = 0  # that are over
        self.batches = 0  # handed out in the pass under way
        self._say, self._heard, self._ended = say, heard, ended
        self._begun = 0  # passes in this process
        self._open, self._left = False, False  # a pass that was broken off is left: the next one begins anew
        self._origins: Origins | None = None
        self._begin: Plain | None = None
        self._last: int | None = None
        self._waiting: Plain | None = None  # a state to go on from

    @property
    def loader(self) -> Any:
        """The loader; None if it is gone."""
        return self._loader()

    @loader.setter
    def loader(self, loader: Any) -> None:
        self._loader: Callable[[], Any] = (lambda: loader) if self._keep else refer_to(loader)
        self.like = going_past.describe(loader)

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
        """Batches of the pass under way that were handed out; before the first one, those that will be gone past."""
        waiting = self._waiting
        return int(waiting["batches"]) if waiting is not None and waiting["under_way"] else self.batches

    def __iter__(self) -> Pass[Batch]:
        return Pass(self)

    def __len__(self) -> int:
        return len(self.loader)

    # Keeping

    def state_dict(self) -> Plain:
        """The position in plain containers and tensors."""
        if self._waiting is not None:  # nothing was drawn since it was loaded
            return self._waiting
        under_way = self._open or (self._left and sys.exc_info()[0] is not None)  # what broke it off is being handled now
        own = _own_state(self.loader) if under_way or not self._left else None
        origins = self._origins or Origins(self.loader)
        return {
            "format": _FORMAT,
            "like": {**self.like, "ranks": world_size()},
            "passes": self.passes + (self._left and not under_way),
            "batches": self.batches if under_way else 0,
            "under_way": under_way,
            "begin": self._begin if under_way and own is None else None,
            "now": origins.read(),
            "last": self._last,
            "own": own,
        }

    def load_state_dict(self, state: Plain) -> None:
        """Go on from there: with the next pass. Raises CannotRestore if this is not the loader that it was."""
        if state["under_way"] and state["own"] is None:
            if state["begin"] is None:
                raise _changed("what decided the order was not known even then")
            state = self._fitting(state)
        self._waiting, self._left, self._open = state, False, False
        self.passes, self.batches = int(state["passes"]), 0
        self._begun += 1  # a pass that is still held by someone counts no more

    # Going on

    def draw(self, loader: Any) -> Iterator[Batch]:
        """One pass over the loader; the position moves along."""
        if self._left:
            self.passes += 1
        self._begun += 1
        number, self._left = self._begun, False
        iterator, witness = self._iterator(loader)
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
                    self._last = witness.about(batch)
                if self._heard is not None:
                    self._heard(batch, time.perf_counter() - asked)
                yield batch
            if number == self._begun:
                self._open, self.passes, self.batches, self._origins = False, self.passes + 1, 0, None
            if self._ended is not None:
                self._ended()
        finally:
            if number == self._begun and self._open:
                self._open, self._left = False, True

    def _iterator(self, loader: Any) -> tuple[Any, Witness]:
        saved, self._waiting = self._waiting, None
        self._origins = origins = Origins(loader)
        self.batches = 0
        if saved is None:
            self._begin = self._read(origins)
            iterator: Any = iter(loader)
            return iterator, Witness(loader, iterator)
        if saved["own"] is not None:
            iterator = self._ask_the_loader(loader, saved)
            return iterator, Witness(loader, iterator)
        if saved["under_way"]:
            return self._go_past(loader, saved)
        origins.set_generators(saved["now"])
        origins.count_on(saved["now"])
        self._begin = origins.read(samplers=True)
        return going_past.begin_pass(loader, origins, self._begin, count=0, skips=False, first_ever=not self.passes)[:2]

    def _read(self, origins: Origins) -> Plain | None:
        """What decides the pass that begins. None if a sampler does not say: the training goes on, the pass cannot."""
        try:
            return origins.read(samplers=True)
        except Exception as error:  # noqa: BLE001 - `state_dict` of someone's sampler
            self._say(f"the place in the data is not kept: {type(error).__name__}: {error}")
            return None

    def _ask_the_loader(self, loader: Any, saved: Plain) -> Any:
        """A loader that keeps its own state goes on by itself."""
        loader.load_state_dict(saved["own"])
        iterator = iter(loader)
        self.batches = int(saved["batches"])
        if saved["under_way"] and self._origins is not None:
            self._origins.set(saved["now"])
        return iterator

    def _go_past(self, loader: Any, saved: Plain) -> tuple[Any, Witness]:
        assert self._origins is not None
        count, begin, begun = int(saved["batches"]), saved["begin"], time.perf_counter()
        skips = going_past.can_skip(loader) if self.fast else going_past.is_by_value(loader)
        origins, first = self._origins, not self.passes
        try:
            iterator, witness, last = going_past.begin_pass(loader, origins, begin, count=count, skips=skips, first_ever=first)
        except StopIteration:
            raise _changed(f"the pass had more than {count} batches and has fewer now") from None
        self._origins.set(saved["now"])
        self._begin, self.batches, self._last = begin, count, saved["last"]
        self._tell(loader, saved, last, time.perf_counter() - begun)
        return iterator, witness

    def _tell(self, loader: Any, saved: Plain, last: int | None, seconds: float) -> None:
        """Say what does not come out as it would have."""
        workers = getattr(loader, "num_workers", 0)
        if workers != saved["like"]["workers"] and not going_past.is_by_value(loader):
            self._say(
                f"the data goes on in the same order, but with {workers} workers instead of {saved['like']['workers']}: "
                "random augmentation comes out differently"
            )
        elif self.passes and going_past.keeps_generators(loader):
            self._say(
                "the data goes on in the same order, but persistent_workers keep their random generators from pass to pass, and "
                "those are gone: random augmentation comes out differently. With persistent_workers=False it is bit-equal"
            )
        elif last is not None and saved["last"] is not None and last != saved["last"]:
            self._say(
                f"the batches before this point ({saved['batches']} of the pass) did not come out as they did the first time: "
                "the order or the augmentation depends on something that is not restored. Give the sampler or the data set a "
                "generator of its own, or use workers"
            )
        if seconds > _SLOW and not self.fast:
            self._say(
                f"going past {saved['batches']} batches took {seconds:.0f} s. If no sample depends on those before it (no random "
                "augmentation in workers), say fast=True: nothing is loaded then"
            )

    def _fitting(self, state: Plain) -> Plain:
        """The state, if this is the loader that it was, or the same data shared out among another number of ranks."""
        before, now = state["like"], {**self.like, "ranks": world_size()}
        different = [name for name in _SAME if before[name] != now[name]]
        count = _shared_out(before, now, int(state["batches"]))
        if different and "ranks" in different and count is not None:
            self._say(
                f"the data goes on where {before['ranks']} ranks left it, now with {now['ranks']}, in the same order; "
                "what is random in it comes out differently"
            )
            here = Origins(self.loader).read()
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
        """Batches of this pass that were handed out, or will be gone past."""
        return self._position.done

    def __iter__(self) -> Pass[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)


def _shared_out(before: Plain, now: Plain, batches: int) -> int | None:
    """How many batches each rank now has behind it, if the ranks take turns in one order that they all know."""
    same = all(before[name] == now[name] for name in ("kind", "data set", "samples", "sampler"))
    sizes = before["batch size"], now["batch size"]
    if not same or now["sampler"] != "DistributedSampler" or None in sizes:
        return None
    used, at_once = batches * before["ranks"] * sizes[0], now["ranks"] * sizes[1]
    return used // at_once if used % at_once == 0 else None


def refer_to(thing: Any) -> Callable[[], Any]:
    """A weak reference; a strong one to what cannot be referred to weakly (a list)."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


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
