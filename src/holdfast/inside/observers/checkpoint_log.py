"""What the journals are told about checkpoints that the script saves and loads itself."""

from __future__ import annotations

import contextlib
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
