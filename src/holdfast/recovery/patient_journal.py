"""A journal for a thread that lives as long as its run: what cannot be written now is kept, and written later."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.signals.journal import Journal

_KEPT = 1000  # rows; of more than that the oldest are given up


class PatientJournal:
    """Writes rows in their order. A full disk, or a share that is away, raises nothing: `on_trouble` is told."""

    def __init__(self, journal: Journal, on_trouble: Callable[[str, BaseException], None] | None = None) -> None:
        self._journal, self._on_trouble = journal, on_trouble
        self._unwritten: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def write(self, kind: str, **fields: Any) -> None:
        """Append one entry, now or later; its time is that of the call."""
        self._unwritten.append({"time": round(time.time(), 3), "kind": kind, **fields})
        self.catch_up()

    def catch_up(self) -> bool:
        """Try again what was not written so far; whether nothing is left."""
        while self._unwritten:
            try:
                self._journal.write(**self._unwritten[0])
            except OSError as error:
                if self._on_trouble is not None:
                    self._on_trouble("writing to the journal", error)
                return False
            self._unwritten.popleft()
        return True
