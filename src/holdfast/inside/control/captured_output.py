"""Capture what evaluated code prints, per thread, while the script's own output goes on as before."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Iterator
from typing import Any

_MAX_CHARACTERS = 256 * 1024  # further ones are only counted


class CapturedOutput(io.StringIO):
    """The output of one evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self._dropped = 0

    def write(self, text: str) -> int:
        """Keep the text up to the limit."""
        room = _MAX_CHARACTERS - self.tell()
        super().write(text[:room])
        self._dropped += max(0, len(text) - room)
        return len(text)

    def text(self) -> str:
        """The output, with the number of dropped characters."""
        more = f"\n… {self._dropped:,} more characters" if self._dropped else ""
        return self.getvalue() + more


class _ThreadStream:
    """Replaces `sys.stdout` and the like: evaluating threads get their own stream, all others the original."""

    def __init__(self, original: Any) -> None:
        self.original, self.by_thread = original, dict[int, Any]()

    def _current(self) -> Any:
        return self.by_thread.get(threading.get_ident(), self.original)

    def write(self, text: str) -> Any:
        stream = self._current()
        return stream.write(text) if stream is not None else len(text)  # a process may have no streams

    def flush(self) -> Any:
        stream = self._current()
        return stream.flush() if stream is not None else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._current(), name)

    def __iter__(self) -> Any:
        return iter(self._current())


_lock = threading.Lock()
_replaced: dict[str, _ThreadStream] = {}


@contextlib.contextmanager
def captured() -> Iterator[CapturedOutput]:
    """Capture this thread's stdout and stderr together; its stdin is empty."""
    output, thread = CapturedOutput(), threading.get_ident()
    with _lock:
        for name in ("stdout", "stderr", "stdin"):
            if name not in _replaced:
                _replaced[name] = _ThreadStream(getattr(sys, name))
                setattr(sys, name, _replaced[name])
            _replaced[name].by_thread[thread] = output if name != "stdin" else io.StringIO()
    try:
        yield output
    finally:
        _restore(thread)


def _restore(thread: int | None) -> None:
    with _lock:
        for name, stream in list(_replaced.items()):
            if thread is None:
                stream.by_thread.clear()
            stream.by_thread.pop(thread or 0, None)
            if not stream.by_thread:
                del _replaced[name]
                if getattr(sys, name) is stream:
                    setattr(sys, name, stream.original)


def after_fork() -> None:
    """In a forked child: the evaluating threads are gone, and one may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _restore(None)
