"""Files whose reading is timed. They are Python's own readers over a raw file that knows the clock, so nobody notices."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

from holdfast.data.loading.clock import READ, Clock


def timed_open(clock: Clock, real: Callable[..., Any]) -> Callable[..., Any]:
    """An `open` with a clock; what is opened for writing, or in an unusual way, is left as it is."""
    raw_file = _raw_type(clock)

    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        plain = set(mode) <= set("rbt") and buffering in (-1, 0) and "r" in mode
        if not clock.runs or not plain or (buffering == 0 and "b" not in mode):
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
        with clock.phase(READ):
            raw = raw_file(file, "r", closefd, opener)
        if buffering == 0:
            return raw
        buffered = io.BufferedReader(raw, getattr(raw, "_blksize", 0) or io.DEFAULT_BUFFER_SIZE)
        return buffered if "b" in mode else _text(buffered, mode, encoding, errors, newline)

    return opened


def _text(buffered: Any, mode: str, encoding: str | None, errors: str | None, newline: str | None) -> io.TextIOWrapper:
    text = io.TextIOWrapper(buffered, encoding, errors, newline)
    text.mode = mode  # type: ignore[misc]
    return text


def _raw_type(clock: Clock) -> type[io.FileIO]:
    class TimedFile(io.FileIO):
        """A raw file with a clock."""

        def readinto(self, buffer: Any) -> int:
            with _reading(clock):
                return super().readinto(buffer)

        def readall(self) -> bytes:
            with _reading(clock):
                return super().readall()

        def read(self, size: int | None = -1) -> bytes:
            with _reading(clock):
                return super().read(-1 if size is None else size)

    return TimedFile


def _reading(clock: Clock) -> Any:
    return clock.phase(READ) if clock.runs else contextlib.nullcontext()
