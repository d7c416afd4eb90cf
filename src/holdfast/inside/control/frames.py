"""The frames of the training: those of the user's code, the innermost first, and what stands between them.

Locals are read and written where they are. Since Python 3.13 a frame's locals write through; before that they are a copy which
is put back, and that is done only in the thread whose frame it is, between two of its own instructions.
"""

from __future__ import annotations

import ctypes
import faulthandler
import inspect
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_WRITE_THROUGH = sys.version_info >= (3, 13)
_ONLY_OURS = 3  # references to a copy of locals that nobody else holds: the frame's, a variable's, that of who counts
_PYTHONS = str(Path(inspect.__file__).parent) + os.sep
_NOT_THE_USERS = {
    *("torch", "holdfast", "numpy", "lightning", "pytorch_lightning", "lightning_fabric", "lightning_utilities", "transformers"),
    *("accelerate", "deepspeed", "ignite", "fastai", "fairscale", "composer", "ray", "torchmetrics", "IPython", "ipykernel"),
}


def all_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_frames(frames: Iterable[FrameType]) -> list[FrameType]:
    """Those whose code is neither torch's, nor Python's, nor a trainer's."""
    return [frame for frame in frames if _is_users(frame)]


def _is_users(frame: FrameType) -> bool:
    if type(frame.f_globals) is not dict:  # code that is evaluated here
        return False
    name, file = frame.f_globals.get("__name__"), frame.f_code.co_filename
    return is_users(name, file)


def is_users(name: Any, file: str) -> bool:
    """Whether a module of that name and file is neither torch's, nor Python's, nor a trainer's."""
    if isinstance(name, str) and name.partition(".")[0] in _NOT_THE_USERS:
        return False
    return not file.startswith("<frozen") and (not file.startswith(_PYTHONS) or "-packages" in file)


class Locals:
    """The locals of one frame of a function. `here` says that this thread is the one whose frame it is."""

    def __init__(self, frame: FrameType, *, here: bool) -> None:
        self.frame, self._here = frame, here
        self.function = frame.f_code.co_name
        self._copy: dict[str, Any] | None = None

    def read(self) -> Any:
        """All of them, as they are now."""
        found: Any = self.frame.f_locals
        if not _WRITE_THROUGH:
            self._copy = found
        return found

    def write(self, name: str, value: Any) -> None:
        """Give one another value. Raises RuntimeError, in words, where that cannot be done safely."""
        if not _WRITE_THROUGH and not self._here:
            raise RuntimeError(
                f"{name} is a local of {self.function}(), which runs: with Python before 3.13 it can be set between two steps "
                f"only, so without --now"
            )
        self.read()[name] = value
        if not _WRITE_THROUGH:
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self.frame), ctypes.c_int(0))

    def let_go(self) -> None:
        """Keep nothing alive: the copy stays with the frame, and with it every tensor in it, unless it is emptied."""
        copy, self._copy = self._copy, None
        if copy is not None and sys.getrefcount(copy) <= _ONLY_OURS:  # else the script itself keeps what `locals()` gave it
            copy.clear()


def is_function(frame: FrameType) -> bool:
    """Whether a frame has locals of its own; those of a module are its globals, those of a class body the class."""
    return bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)


def all_stacks() -> dict[str, Any]:
    """The stacks as `faulthandler` writes them, and the threads with their names and frames, the innermost first."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file=file.fileno(), all_threads=True)
        file.seek(0)
        text = file.read().decode(errors="replace")
    known = {thread.ident: thread for thread in threading.enumerate()}
    threads: list[dict[str, Any]] = []
    names: list[str] = []
    for ident, frame in sys._current_frames().items():
        thread = known.get(ident)
        name, native = (thread.name, thread.native_id) if thread is not None else ("", None)
        frames = [[one.f_code.co_name, one.f_code.co_filename, one.f_lineno] for one in all_frames(frame)]
        threads.append({"ident": ident, "name": name, "native_id": native, "frames": frames})
        names.append(f"Thread 0x{ident:016x} is {name or 'unnamed'} (os thread {native})")
    return {"ok": True, "value": text + "\n" + "\n".join(names), "threads": threads, "output": "", "error": None}
