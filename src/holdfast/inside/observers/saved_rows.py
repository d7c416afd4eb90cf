"""The `saved` rows of the journal: bounded, however often and under however many names a script saves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

_EVERY = 30.0  # seconds between two rows of one path
_NAMES_AT_MOST = 32  # paths that get a row within that time; a script that saves its samples one by one has no checkpoints


class SavedRows:
    """The first save of a path is told at once; those that follow soon are one row, the newest, with how many it stands for."""

    def __init__(self, write: Callable[..., None], now: Callable[[], float] = time.monotonic) -> None:
        self._write, self._now = write, now
        self._told: dict[str, float] = {}
        self._held: dict[str, dict[str, Any]] = {}
        self._others = 0  # saves that are told by number only
        self._lock = threading.Lock()  # the helper thread comes by once a second

    def add(self, path: str, facts: dict[str, Any]) -> None:
        """Something was saved there."""
        self.flush()
        with self._lock:
            now = self._now()
            held = self._held.get(path)
            if path in self._told:
                self._held[path] = {
                    **facts,
                    "when": round(time.time(), 3),
                    "count": 1 + (held["count"] if held is not None else 0),
                }
            elif len(self._told) >= _NAMES_AT_MOST:
                self._others += 1
            else:
                self._told[path] = now
                self._tell(path, facts)

    def flush(self, *, everything: bool = False) -> None:
        """Tell what has waited long enough."""
        with self._lock:
            now = self._now()
            for path, at in list(self._told.items()):
                if not everything and now - at < _EVERY:
                    continue
                held = self._held.pop(path, None)
                if held is None:
                    del self._told[path]
                else:
                    self._told[path] = now
                    self._tell(path, held)

    def _tell(self, path: str, facts: dict[str, Any]) -> None:
        others, self._others = self._others, 0
        more = {"and_others": others} if others else {}
        known = {name: value for name, value in facts.items() if value is not None and (name, value) != ("count", 1)}
        self._write("saved", path=path, **known, **more)
