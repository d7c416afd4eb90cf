"""Keep code that runs beside a training away from tensors that the training may be writing at that moment.

A backward pass replaces `.grad` without the interpreter lock; another thread that reads it then can crash the process. So a
side thread may look at the shape of a tensor, never at its memory, until the training is paused or has made no move for
longer than its steps take.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_QUIET = 5.0  # seconds without a batch, a backward pass or an update, or so many steps' time, after which it counts as hung
_STEPS = 5
_LOOK_EVERY = 0.01
_T = torch.Tensor
_READ_NO_MEMORY = frozenset(
    [
        *(getattr(_T, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf")),
        *(getattr(_T, name).__get__ for name in ("is_cuda", "itemsize", "nbytes", "_version")),
        *(_T.size, _T.dim, _T.numel, _T.nelement, _T.stride, _T.element_size, _T.is_contiguous, _T.is_floating_point),
        *(_T.__len__, _T.__hash__, _T.__dir__),
    ]
)


class TensorInUse(RuntimeError):
    """Code beside a training that runs wanted to read or write a tensor."""


class NoTensorAccess(TorchFunctionMode):
    """Around code of a side thread. Asks again at every use of a tensor, for a hang can end and a pause too."""

    def __init__(self, *, beats: Callable[[], int], is_paused: Callable[[], bool], step_seconds: float, seconds: float) -> None:
        super().__init__()
        self._beats, self._is_paused, self._seconds = beats, is_paused, seconds
        self._quiet = max(_QUIET, _STEPS * step_seconds)
        self._hung_at = -1  # beats of a training that was seen to hang

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let it pass, or raise TensorInUse in the code that was sent."""
        if func in _READ_NO_MEMORY or self._is_paused() or self._hangs():
            return func(*args, **(kwargs or {}))
        raise TensorInUse(
            "the training may be writing this tensor: leave out --now, and the code runs between two steps; with --now tensors "
            f"can be used while the training is paused, or once it has made no progress for {self._quiet:.0f} s"
        )

    def _hangs(self) -> bool:
        """Wait for a sign of life, and say whether there was none."""
        before = self._beats()
        if before == self._hung_at:
            return True
        until = time.monotonic() + self._quiet
        if self._quiet >= self._seconds:  # what was sent would be stopped before that
            return False
        while time.monotonic() < until:
            if self._beats() != before:
                return False
            time.sleep(_LOOK_EVERY)
        self._hung_at = before
        return True


class TookTooLong(BaseException):
    """Raised in evaluated code when its time is over."""


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    what = ctypes.py_object(kind) if kind is not None else ctypes.c_void_p(None)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), what)


class Gate:
    """Open while the code runs."""

    def __init__(self) -> None:
        self._lock, self._thread = threading.Lock(), 0
        self.stopped = False  # whether it was told to

    def open(self) -> None:
        """The code begins, in this thread."""
        self._thread = threading.get_ident()

    @property
    def is_open(self) -> bool:
        """Whether code of someone else's runs that can be told to stop."""
        return self._thread != 0

    def stop(self) -> bool:
        """Tell the code to stop, once; whether it was still running. It stops at its next instruction of Python."""
        with self._lock:
            if not self._thread or self.stopped:
                return False
            self.stopped = True
            _raise_in(self._thread, TookTooLong)
            return True

    def close(self) -> None:
        """The code is over. The exception may still arrive in here, and must be caught around it; afterwards it never does."""
        with self._lock:
            self._thread = 0
        if self.stopped:
            _raise_in(threading.get_ident(), None)
