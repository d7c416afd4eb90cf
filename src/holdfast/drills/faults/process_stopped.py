"""The process is stopped for a while: Ctrl-Z, a debugger, a scheduler that suspends jobs."""

from __future__ import annotations

import os
import signal
import subprocess

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class ProcessStopped(Fault):
    """SIGSTOP, and SIGCONT from a small process after so many seconds. Nothing is wrong: it must be waited for."""

    code = "process-stopped"
    description = "the training process is stopped for 8 seconds (SIGSTOP), then continues"
    expected = Expected(survivable=True)
    strength = 8.0

    def update(self, context: FaultContext) -> None:
        """Between two steps."""
        wakes = ["sh", "-c", f"sleep {self.strong:g}; kill -CONT {os.getpid()}"]
        subprocess.Popen(wakes, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.kill(os.getpid(), signal.SIGSTOP)
