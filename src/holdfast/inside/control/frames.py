"""The stack frames of the training, and which of them are the user's code.

Since Python 3.13 writes to a frame's locals go through. Before that they are a copy that must be written back, which is safe
only in the frame's own thread.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_WRITE_THROUGH = sys.version_info >= (3, 13)
_OWN_REFERENCES = 3  # to a copy of locals that nobody else holds: the frame, a variable, getrefcount's argument
_STDLIB = str(Path(inspect.__file__).parent) + os.sep
_LIBRARIES = {
    *("torch", "holdfast", "numpy", "lightning", "pytorch_lightning", "lightning_fabric", "lightning_utilities", "transformers"),
    *("accelerate", "deepspeed", "ignite", "fastai", "fairscale", "composer", "ray", "torchmetrics", "IPython", "ipykernel"),
}


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


class Locals:
    """The locals of a function's frame by name; `in_thread`: the frame is this thread's."""

    def __init__(self, frame: FrameType, *, in_thread: bool) -> None:
        self.frame, self._in_thread = frame, in_thread
        self._copy: dict[str, Any] | None = None

    def _read(self) -> Any:
        values: Any = self.frame.f_locals
        if not _WRITE_THROUGH:
            self._copy = values
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._read()))

    def __contains__(self, name: object) -> bool:
        return name in self._read()

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if not _WRITE_THROUGH and not self._in_thread:
            raise RuntimeError(
                f"{name} is a local of {self.frame.f_code.co_name}(), which is running: before Python 3.13 it can only be set "
                "between two steps, without --now"
            )
        self._read()[name] = value
        if not _WRITE_THROUGH:
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self.frame), ctypes.c_int(0))

    def release(self) -> None:
        """Empty the copy, which would otherwise keep its tensors alive as long as the frame."""
        copy, self._copy = self._copy, None
        if copy is not None and sys.getrefcount(copy) <= _OWN_REFERENCES:  # else the script holds its own `locals()`
            copy.clear()


def is_function(frame: FrameType) -> bool:
    """Whether a frame is a function's, not a module's or a class body's."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


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
