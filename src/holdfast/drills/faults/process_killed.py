"""The training process is killed: by a scheduler, by a person, by a machine that goes away."""

from __future__ import annotations

import os
import signal

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.scene import Scene


class ProcessKilled(Fault):
    """SIGKILL, which nobody can handle."""

    code = "process-killed"
    what = "the training process gets SIGKILL"
    expected = Expected(findings=("process-died",), causes=("killed-from-outside",), survivable=True)

    def update(self, scene: Scene) -> None:
        """Between two steps."""
        os.kill(os.getpid(), signal.SIGKILL)
