"""The names that evaluated code sees: locals and globals of the training's frames, live, and a few things found by their type.

A name is looked for in the innermost frame of the user's code, its locals and then its globals, then in the frame that called
it, and so on; then among the names that were assigned here before; then by type (`model`, `optimizer`, …). An assignment goes
to where the name was found; a new name stays here.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from holdfast.inside.control.frames import Locals, all_frames, is_function, users_frames
from holdfast.state.related_objects import find_related_objects

if TYPE_CHECKING:
    from holdfast.inside.training import Training

_AT_HAND = {"torch": "torch", "dist": "torch.distributed", "gc": "gc", "threading": "threading"}
Finder = Callable[[str, list[FrameType]], Any]


class Scopes:
    """The frames of one evaluation, from the inside out: of each its locals, if it is a function's, and its globals."""

    def __init__(self, frame: FrameType | None, find: Finder, *, here: bool) -> None:
        self._frames, self._find = list(all_frames(frame)), find
        self.levels: list[tuple[Locals | None, dict[str, Any]]] = []
        self._modules = [one.f_globals for one in users_frames(self._frames)]
        for one in users_frames(self._frames):
            if not is_function(one) and one.f_locals is not one.f_globals:  # a class body, or code that ran through `exec`
                self.levels.append((None, one.f_locals))
            self.levels.append((Locals(one, here=here) if is_function(one) else None, one.f_globals))

    def look_up(self, name: str) -> Any:
        """Its value. Raises KeyError."""
        for own, around in self.levels:
            if own is not None and name in (found := own.read()):
                return found[name]
            if name in around:
                return around[name]
        raise KeyError(name)

    def by_type(self, name: str) -> Any:
        """What goes by this name in most scripts. Raises KeyError."""
        found = self._find(name, self._frames)
        if found is None:
            raise KeyError(name)
        return found

    def assign(self, name: str, value: Any) -> bool:
        """Give a name that is there another value, where it is; False if it is nowhere."""
        for own, around in self.levels:
            if own is not None and name in own.read():
                own.write(name, value)
                return True
            if name in around:
                around[name] = value
                return True
        return False

    def assign_global(self, name: str, value: Any) -> None:
        """As after `global name`, in the module of the innermost frame."""
        if self._modules:
            self._modules[0][name] = value

    def all_names(self) -> Iterator[str]:
        """Every name that is there."""
        for own, around in self.levels:
            if own is not None:
                yield from own.read()
            yield from around

    def let_go(self) -> None:
        """The evaluation is over: keep nothing of it alive."""
        for own, _ in self.levels:
            if own is not None:
                own.let_go()
        self.levels.clear()
        self._modules.clear()
        self._frames.clear()


class Names(dict[str, Any]):
    """The globals of evaluated code. Which scopes they lead to depends on the thread, as two may evaluate at once.

    Its own entries are the names that were made here. Python puts what is declared `global` there without asking.
    """

    def __init__(self) -> None:
        super().__init__({"__builtins__": builtins, "__name__": "holdfast_eval"})
        self._scopes = threading.local()

    def enter(self, scopes: Scopes, declared: frozenset[str]) -> None:
        """From now on, in this thread, these are the scopes, and these the names that the code declares `global`."""
        self._scopes.now, self._scopes.declared = scopes, declared

    def leave(self) -> None:
        """No longer. What was declared `global` in a function of the code goes into the training's module."""
        scopes, self._scopes.now = self._now(), None
        if scopes is not None:
            for name in self._declared():
                if dict.__contains__(self, name):
                    scopes.assign_global(name, dict.pop(self, name))
            scopes.let_go()
        self._scopes.declared = frozenset()

    def _now(self) -> Scopes | None:
        return getattr(self._scopes, "now", None)

    def _declared(self) -> frozenset[str]:
        return getattr(self._scopes, "declared", frozenset())

    def __getitem__(self, name: str) -> Any:
        scopes = self._now()
        if name in self._declared() and dict.__contains__(self, name):
            return dict.__getitem__(self, name)
        if scopes is not None:
            try:
                return scopes.look_up(name)
            except KeyError:
                pass
        if dict.__contains__(self, name):
            return dict.__getitem__(self, name)
        if hasattr(builtins, name):
            raise KeyError(name)
        try:
            if scopes is not None:
                return scopes.by_type(name)
        except KeyError:
            pass
        if name in _AT_HAND:
            return importlib.import_module(_AT_HAND[name])
        raise KeyError(name)

    def __setitem__(self, name: str, value: Any) -> None:
        scopes = self._now()
        if scopes is not None and name in self._declared():
            scopes.assign_global(name, value)
        elif scopes is None or not scopes.assign(name, value):
            dict.__setitem__(self, name, value)

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except KeyError:
            return False
        return True

    def get(self, name: str, default: Any = None) -> Any:
        """As of any mapping."""
        try:
            return self[name]
        except KeyError:
            return default

    def keys(self) -> Any:
        """Every name, as `dir()` and completion want them."""
        scopes = self._now()
        return dict.fromkeys((*(scopes.all_names() if scopes is not None else ()), *dict.keys(self))).keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


_TRAINERS = ("lightning", "pytorch_lightning", "transformers")


class ByType:
    """The things of one training, by the names that most scripts give them."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._ways = {
            "model": self._model,
            "optimizer": self._optimizer,
            "scheduler": self._scheduler,
            "train_loader": self._loader,
            "trainer": self._trainer,
        }

    def __call__(self, name: str, frames: list[FrameType]) -> Any:
        """What goes by that name; None if there is none."""
        way = self._ways.get(name)
        return way(frames) if way is not None else None

    def _model(self, _frames: list[FrameType]) -> Any:
        roots = self._training.roots()
        return roots[0] if roots else None

    def _optimizer(self, _frames: list[FrameType]) -> Any:
        return self._training.main.optimizer() if self._training.main is not None else None

    def _scheduler(self, _frames: list[FrameType]) -> Any:
        optimizers = [one for member in self._training.members.values() if (one := member.optimizer()) is not None]
        found = find_related_objects(self._training.roots(), optimizers).schedulers
        return found[0] if found else None

    def _loader(self, _frames: list[FrameType]) -> Any:
        """The loader that batches come from: an iterator does not know it, so that it is known by its data set."""
        iterator, dataset = self._training.loader.drawn_from()
        if dataset is None:
            return None
        loaders = [one for one in gc.get_objects() if DataLoader in type(one).__mro__]
        fitting = [one for one in loaders if (held := vars(one).get("dataset")) is dataset or id(held) == dataset]
        drawn = [one for one in fitting if iterator is not None and vars(one).get("_iterator") is iterator]
        return next(iter([*drawn, *fitting]), None)

    def _trainer(self, frames: Iterable[FrameType]) -> Any:
        for frame in frames:
            if "self" in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
                inside = Locals(frame, here=False)
                owner = inside.read().get("self")
                inside.let_go()
                if any(kind.__name__ == "Trainer" and kind.__module__.startswith(_TRAINERS) for kind in type(owner).__mro__):
                    return owner
        return None
