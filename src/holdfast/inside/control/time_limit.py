"""Stop evaluated code that takes too long, by an exception in its thread, and never in the code that runs there after it.

with gate:            the code runs; `gate.stop()` from another thread raises TookTooLong in it
    ...
(left)                nobody can raise any more, and what was raised and has not arrived is taken back
"""

from __future__ import annotations

import ctypes
import threading


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
