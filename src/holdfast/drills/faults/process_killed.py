"""The training process is killed: by a scheduler, by a person, by a machine that goes away."""

from __future__ import annotations

import os
import signal

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class ProcessKilled(Fault):
    """SIGKILL, which nobody can handle."""

    code = "process-killed"
    description = "the training process is killed (SIGKILL)"
    expected = Expected(findings=("process-died",), causes=("killed-from-outside",), survivable=True)

    def update(self, context: FaultContext) -> None:
        """Between two steps."""
        os.kill(os.getpid(), signal.SIGKILL)
