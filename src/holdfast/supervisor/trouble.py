"""What the outside could not do: a `holdfast-degraded` finding in the journal, once for each thing."""

from __future__ import annotations

import threading
from typing import Any

from holdfast.signals.run_folder import RunFolder


class Trouble:
    """Record each kind of trouble once. A journal that cannot be written now (a full disk) is tried again later."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._known: set[str] = set()
        self._unwritten: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def step_back(self, what: str, error: BaseException) -> None:
        """Note that `what` is no longer done, and why."""
        with self._lock:
            if what in self._known:
                return
            self._known.add(what)
            evidence = {"what": what, "error": f"{type(error).__name__}: {error}"}
            self._unwritten.append({"code": "holdfast-degraded", "severity": "warning", "evidence": evidence})
        self.write_pending()

    def write_pending(self) -> None:
        """Try again what the journal did not take so far."""
        with self._lock:
            while self._unwritten:
                try:
                    self._run.journal.write("finding", **self._unwritten[0])
                except OSError:
                    return
                del self._unwritten[0]
