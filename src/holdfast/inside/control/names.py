"""The names that evaluated code sees: live locals and globals of the user's frames, and objects found by type.

Lookup order: the innermost user frame's locals and globals, its callers', names assigned by earlier evaluations, then objects
found by type (`model`, `optimizer`, …). An assignment goes to where the name was found; a new name stays here.
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

_MODULES = {"torch": "torch", "dist": "torch.distributed", "gc": "gc", "threading": "threading"}
Finder = Callable[[str, list[FrameType]], Any]


class Scopes:
    """The scopes of one evaluation, innermost first: each user frame's locals, if any, and globals."""

    def __init__(self, frame: FrameType | None, find: Finder, *, in_thread: bool) -> None:
        self._frames, self._find = list(all_frames(frame)), find
        self.levels: list[tuple[Locals | None, dict[str, Any]]] = []
        user_frames = users_frames(self._frames)
        self._modules = [user_frame.f_globals for user_frame in user_frames]
        for user_frame in user_frames:
            is_fn = is_function(user_frame)
            if not is_fn and user_frame.f_locals is not user_frame.f_globals:  # a class body, or code run by `exec`
                self.levels.append((None, user_frame.f_locals))
            self.levels.append((Locals(user_frame, in_thread=in_thread) if is_fn else None, user_frame.f_globals))

    def look_up(self, name: str) -> Any:
        """The value of a name. Raises KeyError."""
        for local, outer in self.levels:
            if local is not None and name in (values := local.read()):
                return values[name]
            if name in outer:
                return outer[name]
        raise KeyError(name)

    def by_type(self, name: str) -> Any:
        """The object that most scripts give this name. Raises KeyError."""
        value = self._find(name, self._frames)
        if value is None:
            raise KeyError(name)
        return value

    def assign(self, name: str, value: Any) -> bool:
        """Assign an existing name where it is defined; False if it is not defined."""
        for local, outer in self.levels:
            if local is not None and name in local.read():
                local.write(name, value)
                return True
            if name in outer:
                outer[name] = value
                return True
        return False

    def assign_global(self, name: str, value: Any) -> None:
        """Assign a global of the innermost user frame."""
        if self._modules:
            self._modules[0][name] = value

    def all_names(self) -> Iterator[str]:
        """All names in scope."""
        for local, outer in self.levels:
            if local is not None:
                yield from local.read()
            yield from outer

    def release(self) -> None:
        """Keep no frame or value alive after the evaluation."""
        for local, _ in self.levels:
            if local is not None:
                local.release()
        self.levels.clear()
        self._modules.clear()
        self._frames.clear()


class Names(dict[str, Any]):
    """The globals of evaluated code; the scopes are per thread, since two threads may evaluate at once.

    Its own entries are names made by evaluated code. Python stores names declared `global` in a function there directly.
    """

    def __init__(self) -> None:
        super().__init__({"__builtins__": builtins, "__name__": "holdfast_eval"})
        self._scopes = threading.local()

    def enter(self, scopes: Scopes, declared: frozenset[str]) -> None:
        """Set this thread's scopes, and the names that its code declares `global`."""
        self._scopes.now, self._scopes.declared = scopes, declared

    def leave(self) -> None:
        """Leave the scopes; names declared `global` move to the user's module."""
        scopes, self._scopes.now = self._current(), None
        if scopes is not None:
            for name in self._declared():
                if dict.__contains__(self, name):
                    scopes.assign_global(name, dict.pop(self, name))
            scopes.release()
        self._scopes.declared = frozenset()

    def _current(self) -> Scopes | None:
        return getattr(self._scopes, "now", None)

    def _declared(self) -> frozenset[str]:
        return getattr(self._scopes, "declared", frozenset())

    def __getitem__(self, name: str) -> Any:
        scopes = self._current()
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
        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        raise KeyError(name)

    def __setitem__(self, name: str, value: Any) -> None:
        scopes = self._current()
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
        """As `dict.get`."""
        try:
            return self[name]
        except KeyError:
            return default

    def keys(self) -> Any:
        """All names, for `dir()` and completion."""
        scopes = self._current()
        return dict.fromkeys((*(scopes.all_names() if scopes is not None else ()), *dict.keys(self))).keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


_TRAINERS = ("lightning", "pytorch_lightning", "transformers")


class ByType:
    """The objects of one training, by the names that most scripts give them."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._finders = {
            "model": self._model,
            "optimizer": self._optimizer,
            "scheduler": self._scheduler,
            "train_loader": self._loader,
            "trainer": self._trainer,
        }

    def __call__(self, name: str, frames: list[FrameType]) -> Any:
        """The object for a name, or None."""
        finder = self._finders.get(name)
        return finder(frames) if finder is not None else None

    def _model(self, _frames: list[FrameType]) -> Any:
        return next(iter(self._training.roots()), None)

    def _optimizer(self, _frames: list[FrameType]) -> Any:
        return self._training.main_optimizer()

    def _scheduler(self, _frames: list[FrameType]) -> Any:
        optimizers = [o for member in self._training.members.values() if (o := member.optimizer()) is not None]
        return next(iter(find_related_objects(self._training.roots(), optimizers).schedulers), None)

    def _loader(self, _frames: list[FrameType]) -> Any:
        """The loader of the current batches, found by its dataset, since an iterator does not refer to its loader."""
        iterator, dataset = self._training.loader.drawn_from()
        if dataset is None:
            return None
        loaders = [loader for loader in gc.get_objects() if DataLoader in type(loader).__mro__]
        matching = [loader for loader in loaders if (own := vars(loader).get("dataset")) is dataset or id(own) == dataset]
        exact = [loader for loader in matching if iterator is not None and vars(loader).get("_iterator") is iterator]
        return next(iter([*exact, *matching]), None)

    def _trainer(self, frames: Iterable[FrameType]) -> Any:
        for frame in frames:
            if "self" in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
                local = Locals(frame, in_thread=False)
                owner = local.read().get("self")
                local.release()
                if any(kind.__name__ == "Trainer" and kind.__module__.startswith(_TRAINERS) for kind in type(owner).__mro__):
                    return owner
        return None
