"""The names that evaluated code sees: its own, live locals and globals of the user's frames, and objects found by type.

Python asks `__missing__` for every name that the code has not assigned itself. What it assigns stays here while it runs; then a
name of the script is assigned where the script has it, and a new one stays for the next evaluation. Before Python 3.13 the locals
of a function are a copy that must be written back, which is safe only in the function's own thread.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import importlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from holdfast.state.related_objects import find_related_objects

_MODULES = {"torch": "torch", "dist": "torch.distributed", "gc": "gc", "threading": "threading"}
_STDLIB = str(Path(inspect.__file__).parent) + os.sep
_LIBRARIES = {
    *("torch", "holdfast", "numpy", "lightning", "pytorch_lightning", "lightning_fabric", "lightning_utilities", "transformers"),
    *("accelerate", "deepspeed", "ignite", "fastai", "fairscale", "composer", "ray", "torchmetrics", "IPython", "ipykernel"),
}
_WRITE_THROUGH = sys.version_info >= (3, 13)
_OWN_REFERENCES = 3  # to a copy of locals that nobody else holds: the frame, a variable, getrefcount's argument
FrameFinder = Callable[[], FrameType | None]


def all_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_frames(frames: Iterable[FrameType]) -> list[FrameType]:
    """The frames whose code is not torch's, Python's or a training framework's."""
    return [frame for frame in frames if _is_users(frame)]


def _is_users(frame: FrameType) -> bool:
    if type(frame.f_globals) is not dict:  # evaluated code
        return False
    name, file = frame.f_globals.get("__name__"), frame.f_code.co_filename
    if isinstance(name, str) and name.partition(".")[0] in _LIBRARIES:
        return False
    return not file.startswith("<frozen") and (not file.startswith(_STDLIB) or "-packages" in file)


def all_stacks() -> dict[str, Any]:
    """The frames of each thread, innermost first."""
    by_ident = {thread.ident: thread for thread in threading.enumerate()}
    threads: list[dict[str, Any]] = []
    for ident, frame in sys._current_frames().items():
        thread = by_ident.get(ident)
        name, native = (thread.name, thread.native_id) if thread is not None else ("", None)
        frames = [[f.f_code.co_name, f.f_code.co_filename, f.f_lineno] for f in all_frames(frame)]
        threads.append({"ident": ident, "name": name, "native_id": native, "frames": frames})
    return {"ok": True, "threads": threads}


class Names(dict[str, Any]):
    """The globals of evaluated code; its entries are what the code has assigned. `frame` is the training's innermost one."""

    def __init__(self, frame: FrameFinder, find: Callable[[str], Any], own: Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__({"__builtins__": builtins, "__name__": "holdfast_eval"})
        self._frame, self._find = frame, find
        self.update(own)

    def __missing__(self, name: str) -> Any:
        for _, scope in self._scopes():
            if name in scope:
                return scope[name]
        if not hasattr(builtins, name) and (value := self._find(name)) is not None:
            return value
        raise KeyError(name)

    def copy(self) -> Names:
        """The same names, for another thread."""
        return Names(self._frame, self._find, self.items())

    def drop_hidden(self) -> None:
        """Forget names of the code that the script has by now: the script's come first."""
        script = {name for _, scope in self._scopes() for name in scope if not name.startswith("__")}
        for name in script & self.keys():
            del self[name]

    def all_names(self) -> set[str]:
        """All names in scope."""
        return {*self, *(name for _, scope in self._scopes() for name in scope)}

    def assign(self, assigned: Iterable[str], declared: frozenset[str], *, in_thread: bool) -> None:
        """Move these names to where the script has them; those `declared` global to the user's module. Raises RuntimeError."""
        frames = self._user_frames()
        for name in assigned:
            scope = next((scope for scope in self._scopes() if name in scope[1]), None)
            if scope is not None or (name in declared and frames):
                _assign(scope or (frames[0], frames[0].f_globals), name, self.pop(name), in_thread=in_thread)

    def release(self) -> None:
        """Empty the copies of locals, which would keep tensors alive as long as their frames."""
        for frame in self._user_frames() if not _WRITE_THROUGH else ():
            copy = frame.f_locals
            if _is_function(frame) and sys.getrefcount(copy) <= _OWN_REFERENCES:  # else the script keeps its own `locals()`
                copy.clear()

    def _user_frames(self) -> list[FrameType]:
        return users_frames(all_frames(self._frame()))

    def _scopes(self) -> Iterator[tuple[FrameType, Any]]:
        """Locals and globals of each user frame, innermost first."""
        for frame in self._user_frames():
            yield frame, frame.f_locals
            yield frame, frame.f_globals


def _assign(scope: tuple[FrameType, Any], name: str, value: Any, *, in_thread: bool) -> None:
    frame, values = scope
    is_copy = not _WRITE_THROUGH and _is_function(frame) and values is not frame.f_globals
    if is_copy and not in_thread:
        raise RuntimeError(
            f"{name} is a local of {frame.f_code.co_name}(), which is running: before Python 3.13 it can only be set "
            "between two steps, without --now"
        )
    values[name] = value
    if is_copy:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def _is_function(frame: FrameType) -> bool:
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def find_by_type(training: Any, name: str) -> Any:
    """The object of a `Training` that most scripts give this name, or None."""
    if name == "model":
        return next(iter(training.roots()), None)
    if name == "optimizer":
        return training.main_optimizer()
    if name == "scheduler":
        return next(iter(find_related_objects(training.roots(), training.optimizers()).schedulers), None)
    if name == "train_loader":
        return _loader(*training.loader.drawn_from())
    return importlib.import_module(_MODULES[name]) if name in _MODULES else None


def _loader(iterator: Any, dataset: Any) -> Any:
    """The loader of the current batches, found by its dataset, since an iterator does not refer to its loader."""
    if dataset is None:
        return None
    loaders = [loader for loader in gc.get_objects() if DataLoader in type(loader).__mro__]
    matching = [loader for loader in loaders if (own := vars(loader).get("dataset")) is dataset or id(own) == dataset]
    exact = [loader for loader in matching if iterator is not None and vars(loader).get("_iterator") is iterator]
    return next(iter([*exact, *matching]), None)
