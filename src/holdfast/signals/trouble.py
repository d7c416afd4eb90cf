"""What Holdfast itself could not do: `holdfast-degraded` findings in the journal of a run."""

from __future__ import annotations

import threading
from typing import Any

from holdfast.signals.journal import Journal

_THINGS_AT_MOST = 100
NOTHING_SEEN = "recording steps"  # the one thing without which nothing was watched


class Trouble:
    """Records each failure: the first of a thing, and then at every doubling of their number.

    A journal that cannot be written now (a full disk) is tried again later.
    """

    def __init__(self, journal: Journal, **fields: Any) -> None:
        self._journal, self._fields = journal, fields
        self.first: str | None = None
        self._counts: dict[str, int] = {}
        self._unwritten: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def step_back(self, part: str, error: BaseException) -> None:
        """Note that `what` failed, and why."""
        with self.lock:
            count = self._counts.get(part, 0) + 1
            if count == 1 and len(self._counts) >= _THINGS_AT_MOST:
                return
            self._counts[part] = count
            self.first = self.first or f"{part}: {error}"
            if count & (count - 1):
                return
            evidence = {"what": part, "error": f"{type(error).__name__}: {error}"} | ({"so_far": count} if count > 1 else {})
            self._unwritten.append({"code": "holdfast-degraded", "severity": "warning", **self._fields, "evidence": evidence})
        self.write_pending()

    def write_pending(self) -> None:
        """Try again what the journal did not take so far."""
        with self.lock:
            while self._unwritten:
                try:
                    self._journal.write("finding", **self._unwritten[0])
                except OSError:
                    return
                del self._unwritten[0]
