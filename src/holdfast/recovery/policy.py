"""What a policy is: a question that is asked about a diagnosis, and answered with an action or with nothing."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from holdfast.diagnosis.diagnosis import Diagnosis
from holdfast.recovery.past import ActionLog
from holdfast.signals.actions import Action


@runtime_checkable
class Policy(Protocol):
    """Anything with `decide`. It must be pure: the same diagnosis and past give the same answer."""

    def decide(self, diagnosis: Diagnosis, past: ActionLog) -> Action | None:
        """What to do about the diagnosis, given what was done before; None to leave it to the next policy."""
        ...
