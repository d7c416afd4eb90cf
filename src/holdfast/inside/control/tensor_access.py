"""Keep code in a side thread away from tensors that the training may be writing.

A backward pass replaces `.grad` without holding the GIL; another thread that reads it then can crash the process. So a side
thread may read a tensor's shape but not its memory, unless the training is paused or hangs.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from holdfast.inside.observers.heartbeat import HEARTBEAT

_HANG_SECONDS, _HANG_STEPS = 5.0, 5  # no batch, backward pass or update for the longer of the two: the training hangs
_POLL_EVERY = 0.01
_T = torch.Tensor
_METADATA = frozenset(
    [
        *(getattr(_T, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf")),
        *(getattr(_T, name).__get__ for name in ("is_cuda", "itemsize", "nbytes", "_version")),
        *(_T.size, _T.dim, _T.numel, _T.nelement, _T.stride, _T.element_size, _T.is_contiguous, _T.is_floating_point),
        *(_T.__len__, _T.__hash__, _T.__dir__),
    ]
)


class TensorInUse(RuntimeError):
    """Code in a side thread tried to read or write a tensor of a running training."""


class NoTensorAccess(TorchFunctionMode):
    """Wraps code of a side thread; checks again at every tensor use, since a hang or pause can end."""

    def __init__(self, *, is_paused: Callable[[], bool], step_seconds: float, timeout: float) -> None:
        super().__init__()
        self._is_paused, self._timeout = is_paused, timeout
        self._hang_seconds = max(_HANG_SECONDS, _HANG_STEPS * step_seconds)
        self._hung_at = -1  # heartbeat count at which the training was seen to hang

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function, or raise TensorInUse in the evaluated code."""
        if func in _METADATA or self._is_paused() or self._hangs():
            return func(*args, **(kwargs or {}))
        raise TensorInUse(
            "the training may be writing this tensor: without --now the code runs between two steps; with --now it can use "
            f"tensors while the training is paused, or once it has made no progress for {self._hang_seconds:.0f} s"
        )

    def _hangs(self) -> bool:
        """Watch the heartbeat; True if it stands still for long enough."""
        beats = HEARTBEAT.beats
        if beats == self._hung_at:
            return True
        if self._hang_seconds >= self._timeout:  # the code would time out first
            return False
        deadline = time.monotonic() + self._hang_seconds
        while time.monotonic() < deadline:
            if HEARTBEAT.beats != beats:
                return False
            time.sleep(_POLL_EVERY)
        self._hung_at = beats
        return True


class EvalTimeout(BaseException):
    """Raised in evaluated code when its time is up."""


def _raise_in(thread: int) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(EvalTimeout))


def _take_back() -> None:
    """Nothing is raised in this thread after this.

    What is under way is replaced and met here, not withdrawn: after that, Python 3.11 looks for it at every call for ever, and a
    profiler (`sys.setprofile`) hangs.
    """
    with contextlib.suppress(EvalTimeout):
        _raise_in(threading.get_ident())
        for _ in range(1000):  # it comes at the end of a round
            pass


class StoppableCode:
    """Evaluated code that another thread can stop while it runs."""

    def __init__(self) -> None:
        self._lock, self._thread = threading.Lock(), 0
        self.stopped = False

    def start(self) -> None:
        """The code starts in this thread."""
        self._thread = threading.get_ident()

    @property
    def is_running(self) -> bool:
        """Whether user code runs that can be stopped."""
        return self._thread != 0

    def stop(self) -> bool:
        """Raise EvalTimeout in the code, once, at its next bytecode; False if it is not running."""
        with self._lock:
            if not self._thread or self.stopped:
                return False
            self.stopped = True
            _raise_in(self._thread)
            return True

    def finish(self) -> None:
        """The code has ended. EvalTimeout may still arrive inside this call, but not after it."""
        with self._lock:
            self._thread = 0
        if self.stopped:
            _take_back()
