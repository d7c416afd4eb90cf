"""The names that evaluated code sees: live locals and globals of the user's frames, and objects found by type.

Lookup order: the innermost user frame's locals and globals, its callers', names assigned by earlier evaluations, then objects
found by type (`model`, `optimizer`, …). An assignment goes to where the name was found; a new name stays here.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from holdfast.inside.control.frames import Locals, all_frames, is_function, users_frames
from holdfast.state.related_objects import find_related_objects

if TYPE_CHECKING:
    from holdfast.inside.training import Training

_MODULES = {"torch": "torch", "dist": "torch.distributed", "gc": "gc", "threading": "threading"}
_TRAINERS = ("lightning", "pytorch_lightning", "transformers")
Finder = Callable[[str, list[FrameType]], Any]


class Scopes:
    """The scopes of one evaluation, innermost first: each user frame's locals, if any, and globals."""

    def __init__(self, frame: FrameType | None, find: Finder, *, in_thread: bool) -> None:
        self._frames, self._find = list(all_frames(frame)), find
        self._levels: list[Any] = []  # dicts and `Locals`
        user_frames = users_frames(self._frames)
        self._module = user_frames[0].f_globals if user_frames else None
        for user_frame in user_frames:
            if is_function(user_frame):
                self._levels.append(Locals(user_frame, in_thread=in_thread))
            elif user_frame.f_locals is not user_frame.f_globals:  # a class body, or code run by `exec`
                self._levels.append(user_frame.f_locals)
            self._levels.append(user_frame.f_globals)

    def level_of(self, name: str) -> Any:
        """The innermost level that defines a name, or None."""
        return next((level for level in self._levels if name in level), None)

    def by_type(self, name: str) -> Any:
        """The object that most scripts give this name, or None."""
        return self._find(name, self._frames)

    def assign_global(self, name: str, value: Any) -> None:
        """Assign a global of the innermost user frame."""
        if self._module is not None:
            self._module[name] = value

    def all_names(self) -> Iterator[str]:
        """All names in scope."""
        for level in self._levels:
            yield from level

    def release(self) -> None:
        """Keep no frame or value alive after the evaluation."""
        for level in self._levels:
            if isinstance(level, Locals):
                level.release()
        self._module = None
        self._levels.clear()
        self._frames.clear()


class Names(dict[str, Any]):
    """The globals of evaluated code; the scopes are per thread, since two threads may evaluate at once.

    Its own entries are names made by evaluated code. Python stores names declared `global` there directly.
    """

    def __init__(self) -> None:
        super().__init__({"__builtins__": builtins, "__name__": "holdfast_eval"})
        self._thread = threading.local()

    def enter(self, scopes: Scopes, declared: frozenset[str]) -> None:
        """Set this thread's scopes, and the names that its code declares `global`."""
        self._thread.scopes, self._thread.declared = scopes, declared

    def leave(self) -> None:
        """Leave the scopes; names declared `global` move to the user's module."""
        scopes: Scopes = self._thread.scopes
        for name in self._thread.declared:
            if dict.__contains__(self, name):
                scopes.assign_global(name, dict.pop(self, name))
        scopes.release()
        self._thread.scopes = None

    def _scopes(self) -> Scopes | None:
        return getattr(self._thread, "scopes", None)

    def __getitem__(self, name: str) -> Any:
        scopes, is_own = self._scopes(), dict.__contains__(self, name)
        if scopes is not None and not (is_own and name in self._thread.declared):
            level = scopes.level_of(name)
            if level is not None:
                return level[name]
        if is_own:
            return dict.__getitem__(self, name)
        if not hasattr(builtins, name):
            if scopes is not None and (value := scopes.by_type(name)) is not None:
                return value
            if name in _MODULES:
                return importlib.import_module(_MODULES[name])
        raise KeyError(name)

    def __setitem__(self, name: str, value: Any) -> None:
        scopes = self._scopes()
        level = scopes.level_of(name) if scopes is not None else None
        if level is None:
            dict.__setitem__(self, name, value)
        else:
            level[name] = value

    def keys(self) -> Any:
        """All names, for `dir()` and completion."""
        scopes = self._scopes()
        return dict.fromkeys((*(scopes.all_names() if scopes is not None else ()), *dict.keys(self))).keys()


class ByType:
    """The objects of one training, by the names that most scripts give them."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def __call__(self, name: str, frames: list[FrameType]) -> Any:
        """The object for a name, or None."""
        training = self._training
        if name == "model":
            return next(iter(training.roots()), None)
        if name == "optimizer":
            return training.main_optimizer()
        if name == "scheduler":
            return next(iter(find_related_objects(training.roots(), training.optimizers()).schedulers), None)
        if name == "train_loader":
            return _loader(*training.loader.drawn_from())
        return (
            next((trainer for frame in frames if (trainer := _trainer(frame)) is not None), None) if name == "trainer" else None
        )


def _loader(iterator: Any, dataset: Any) -> Any:
    """The loader of the current batches, found by its dataset, since an iterator does not refer to its loader."""
    if dataset is None:
        return None
    loaders = [loader for loader in gc.get_objects() if DataLoader in type(loader).__mro__]
    matching = [loader for loader in loaders if (own := vars(loader).get("dataset")) is dataset or id(own) == dataset]
    exact = [loader for loader in matching if iterator is not None and vars(loader).get("_iterator") is iterator]
    return next(iter([*exact, *matching]), None)


def _trainer(frame: FrameType) -> Any:
    """The trainer whose method a frame runs, or None."""
    if "self" not in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
        return None
    local = Locals(frame, in_thread=False)
    owner = next((local[name] for name in local if name == "self"), None)
    local.release()
    kinds = type(owner).__mro__
    return owner if any(kind.__name__ == "Trainer" and kind.__module__.startswith(_TRAINERS) for kind in kinds) else None
