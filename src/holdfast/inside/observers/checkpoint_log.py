"""What the journals are told about checkpoints that the script saves and loads itself."""

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
    """Writes the rows into the journal of every run that this process belongs to."""

    def __init__(self, scopes: Callable[[], list[Scope]]) -> None:
        self._scopes = scopes

    def newest(self) -> Training | None:
        """The training that began last, if one has begun."""
        return next((scope.trainings[-1] for scope in reversed(self._scopes()) if scope.trainings), None)

    def step(self) -> int | None:
        """How many steps were made so far; None before the first training."""
        training = self.newest()
        return training.step if training is not None else None

    def guards(self, code: str) -> bool:
        """Whether any run may act on this finding."""
        return any(scope.policy.guards(code) for scope in self._scopes())

    def heals(self, code: str) -> bool:
        """Whether any run may be repaired because of this finding."""
        return any(scope.policy.heals_from(code) for scope in self._scopes())

    def action(self, action: str, because: str, detail: str) -> None:
        """Write what was done."""
        self._write("action", action=action, step=self.step(), because=because, settings={}, state="done", detail=detail)

    def row(self, event: str, **facts: Any) -> None:
        """Write a row about a checkpoint."""
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
