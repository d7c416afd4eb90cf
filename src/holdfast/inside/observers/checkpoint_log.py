"""Journal rows and findings about checkpoints that the script saves and loads itself."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.inside.ranks import current_rank

if TYPE_CHECKING:
    from holdfast.inside.scope import Scope
    from holdfast.inside.training import Training


class CheckpointLog:
    """Writes to the journal of every run that this process belongs to."""

    def __init__(self, scopes: Callable[[], list[Scope]]) -> None:
        self._scopes = scopes

    def newest(self) -> Training | None:
        """The training that began last, if any."""
        return next((scope.trainings[-1] for scope in reversed(self._scopes()) if scope.trainings), None)

    def step(self) -> int | None:
        """The current step; None before the first training."""
        training = self.newest()
        return training.step if training is not None else None

    def guards(self, code: str) -> bool:
        """Whether the policy of any run allows to act on this finding."""
        return any(scope.policy.guards(code) for scope in self._scopes())

    def row(self, event: str, **facts: Any) -> None:
        """Write a `checkpoint` row."""
        training = self.newest()
        if training is not None:
            facts = {"step": training.step, "recording": training.recorder.recording.name, **facts}
        self._write("checkpoint", event=event, **facts)

    def finding(self, code: str, severity: str, evidence: dict[str, Any]) -> None:
        """Write a finding."""
        self._write("finding", code=code, severity=severity, step=self.step(), evidence=evidence)

    def _write(self, kind: str, **fields: Any) -> None:
        for scope in self._scopes():
            with contextlib.suppress(OSError):
                scope.run.journal.write(kind, rank=current_rank(), **fields)


_SECONDS_PER_ROW, _AT_ONCE = 30.0, 20  # of one path, after its first rows: where a run is killed, those that wait are lost
_MAX_PATHS = 32  # with a row in that time; a script that saves its samples one by one writes no checkpoints


class SavedRows:
    """Limits the rows of repeated saves: the first ones are written at once, later ones as one row with their count."""

    def __init__(self, write: Callable[..., None], now: Callable[[], float] = time.monotonic) -> None:
        self._write, self._now = write, now
        self._written_at: dict[str, float] = {}
        self._num_written: dict[str, int] = {}
        self._pending: dict[str, dict[str, Any]] = {}
        self._other_saves = 0  # saves beyond the path limit, reported by number only
        self._lock = threading.Lock()  # the helper thread flushes once a second

    def add(self, path: str, facts: dict[str, Any]) -> None:
        """Log one save."""
        self.flush()
        with self._lock:
            if path in self._written_at and self._num_written[path] >= _AT_ONCE:
                count = 1 + self._pending.get(path, {"count": 0})["count"]
                self._pending[path] = {**facts, "when": round(time.time(), 3), "count": count}
            elif path not in self._written_at and len(self._written_at) >= _MAX_PATHS:
                self._other_saves += 1
            else:
                self._written_at[path] = self._now()
                self._num_written[path] = self._num_written.get(path, 0) + 1
                self._write_row(path, facts)

    def has(self, path: str) -> bool:
        """Whether a save to this path was seen lately."""
        return path in self._written_at

    def flush(self, *, everything: bool = False) -> None:
        """Write the rows that have waited long enough."""
        with self._lock:
            now = self._now()
            for path, written_at in list(self._written_at.items()):
                if not everything and now - written_at < _SECONDS_PER_ROW:
                    continue
                pending = self._pending.pop(path, None)
                if pending is None:
                    del self._written_at[path], self._num_written[path]
                else:
                    self._written_at[path] = now
                    self._write_row(path, pending)

    def _write_row(self, path: str, facts: dict[str, Any]) -> None:
        others, self._other_saves = self._other_saves, 0
        facts = {name: value for name, value in facts.items() if value is not None and (name, value) != ("count", 1)}
        self._write("saved", path=path, **facts, **({"and_others": others} if others else {}))
