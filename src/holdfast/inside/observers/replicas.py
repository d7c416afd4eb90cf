"""torchft: which replica left or joined, at which step, and what that cost.

torchft logs every change of its quorum and every commit (`torchft_quorums`, `torchft_commits`). Who takes part
is asked of the lighthouse, in a thread of its own: the members of its newest quorum are compared with those of the one before.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Any

from holdfast.signals.own_thread import OwnThread

_QUORUMS, _COMMITS = "torchft_quorums", "torchft_commits"
_MEMBER = re.compile(r"<b>([^<]+)</b>")
_ASK_SECONDS = 5.0


class Replicas(logging.Filter):
    """Reads the two loggers; what was not logged before is not logged now."""

    def __init__(self, write: Callable[..., object]) -> None:
        super().__init__()
        self._write = write
        self._shown_from = logging.WARNING
        self._members: set[str] = set()
        self._between: deque[float] = deque(maxlen=64)  # seconds between two commits
        self._last_commit: float | None = None
        self._changed = False
        self._uncommitted = 0

    def attach(self) -> None:
        """torchft was imported."""
        self._shown_from = logging.getLogger(_QUORUMS).getEffectiveLevel()
        for name in (_QUORUMS, _COMMITS):
            logger = logging.getLogger(name)
            logger.addFilter(self)
            logger.setLevel(min(logging.INFO, self._shown_from))

    def filter(self, record: logging.LogRecord) -> bool:
        """Called for each record of the two."""
        with contextlib.suppress(Exception):
            if record.name == _QUORUMS:
                self._changed = True
            else:
                self._commit(int(getattr(record, "step", 0)), done=bool(getattr(record, "commit_result", False)))
        return record.levelno >= self._shown_from

    def _commit(self, step: int, *, done: bool) -> None:
        if not done:
            self._uncommitted += 1
            return
        now = time.monotonic()
        took = None if self._last_commit is None else now - self._last_commit
        self._last_commit = now
        if self._changed:
            usual = median(self._between) if self._between else 0.0
            evidence = {"seconds": max(0.0, (took or 0.0) - usual), "batches": self._uncommitted}
            OwnThread(self._tell, step, evidence, name="holdfast-replicas").start()
            self._changed, self._uncommitted = False, 0
        elif took is not None:
            self._between.append(took)

    def _tell(self, step: int, evidence: dict[str, Any]) -> None:
        """Who has left or joined; the first quorum is only remembered."""
        with contextlib.suppress(Exception):
            before, self._members = self._members, _members()
            if not before:
                return
            change = {"left": sorted(before - self._members), "joined": sorted(self._members - before)}
            rounded = {name: round(value, 2) for name, value in evidence.items()}
            severity = "warning" if change["left"] else "info"
            evidence = {**change, "replicas": len(self._members), **rounded}
            self._write("finding", code="replica-left", severity=severity, step=step, evidence=evidence)


def _members() -> set[str]:
    """The replicas in the newest quorum, from the lighthouse's status page, which also lists the heartbeats of dead ones."""
    import html
    import urllib.request

    address = os.environ["TORCHFT_LIGHTHOUSE"].rstrip("/")
    with urllib.request.urlopen(f"{address}/status", timeout=_ASK_SECONDS) as answer:
        quorum = answer.read().decode().partition("<h2>Heartbeats")[0]
    return {html.unescape(replica) for replica in _MEMBER.findall(quorum)}
