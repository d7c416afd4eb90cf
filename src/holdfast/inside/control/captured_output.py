"""Keep what evaluated code prints apart from what the script prints: by thread, while something is evaluated."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Iterator
from typing import Any

_AT_MOST = 256 * 1024  # characters; what comes after them is counted


class CapturedOutput(io.StringIO):
    """What one evaluation has printed."""

    def __init__(self) -> None:
        super().__init__()
        self._dropped = 0

    def write(self, text: str) -> int:
        """Keep it, as long as there is not too much."""
        room = _AT_MOST - self.tell()
        super().write(text[:room])
        self._dropped += max(0, len(text) - room)
        return len(text)

    def text(self) -> str:
        """All of it."""
        more = f"\n… {self._dropped:,} more characters" if self._dropped else ""
        return self.getvalue() + more


class _ByThread:
    """Stands for `sys.stdout` and the like: for threads that evaluate it is their own, for all others what was there before."""

    def __init__(self, before: Any) -> None:
        self.before, self.own = before, dict[int, Any]()

    def _now(self) -> Any:
        return self.own.get(threading.get_ident(), self.before)

    def write(self, text: str) -> Any:
        now = self._now()
        return now.write(text) if now is not None else len(text)  # a process without streams prints nowhere

    def flush(self) -> Any:
        now = self._now()
        return now.flush() if now is not None else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now(), name)

    def __iter__(self) -> Any:
        return iter(self._now())


_lock = threading.Lock()
_placed: dict[str, _ByThread] = {}


@contextlib.contextmanager
def captured() -> Iterator[CapturedOutput]:
    """What this thread prints meanwhile, on stdout and stderr together; there is nothing for it to read."""
    printed, thread = CapturedOutput(), threading.get_ident()
    with _lock:
        for name in ("stdout", "stderr", "stdin"):
            if name not in _placed:
                _placed[name] = _ByThread(getattr(sys, name))
                setattr(sys, name, _placed[name])
            _placed[name].own[thread] = printed if name != "stdin" else io.StringIO()
    try:
        yield printed
    finally:
        _put_back(thread)


def _put_back(thread: int | None) -> None:
    with _lock:
        for name, placed in list(_placed.items()):
            if thread is None:
                placed.own.clear()
            placed.own.pop(thread or 0, None)
            if not placed.own:
                del _placed[name]
                if getattr(sys, name) is placed:
                    setattr(sys, name, placed.before)


def after_fork() -> None:
    """In a forked child: the threads that evaluated are not here, and one of them may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _put_back(None)
