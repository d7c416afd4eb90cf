"""An action: what is to be changed in a run, because of which finding or cause. A row of the journal and of the action queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

QUEUE = "action_queue.jsonl"  # in the run folder
KINDS = {
    "skip-batch": "skip the update of one step",
    "clip": "keep the gradient norm under `max_norm` from now on",
    "roll-back": "restore the snapshot of step `to`, or a newer checkpoint up to step `before`, and continue with the learning"
    " rate times `lr_factor`, up to `lr_limit`; after `regain_steps`, if set, it ramps back up within as many",
    "lower-lr": "multiply the learning rate by `factor`",
    "shrink-micro-batch": "split every batch into `parts`, with the same gradient",
    "save-checkpoint": "save a checkpoint now",
    "end-processes": "end the command with everything that it has started",
    "restart": "restart the command from its last good checkpoint",
    "stop": "end the training, with the reason in `why`; with `save`, after a checkpoint",
}


@dataclass(frozen=True, slots=True)
class Action:
    """One change. `step` is the step it was decided on, `because` the cause or finding that led to it."""

    kind: str
    step: int = field(kw_only=True)
    because: str = field(kw_only=True)
    settings: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def as_row(self) -> dict[str, Any]:
        """The action as the journal and the action queue hold it."""
        return {"action": self.kind, "step": self.step, "because": self.because, "settings": dict(self.settings)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Action:
        """Read it back."""
        return cls(
            str(row["action"]), step=int(row["step"]), because=str(row["because"]), settings=dict(row.get("settings") or {})
        )


class Refused(Exception):
    """An action that cannot be done in this loop; the message says why."""


class RunControl(Protocol):
    """What a loop offers to policies: the one way in which a training is changed."""

    def apply(self, action: Action, step: int) -> str:
        """Do it before the update of `step` and say what was done. Raises Refused, in words, if it cannot be done here."""
        ...
