"""The process dies in the middle of a save: the file is there under its name, and only the first half of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class CheckpointTruncated(Fault):
    """The file is cut off, and the process gets SIGKILL before it is told that the save is done."""

    code = "checkpoint-truncated"
    description = "the process is killed in the middle of a save: the file is half written"
    expected = Expected(findings=("checkpoint-torn",), causes=("save-interrupted", "killed-from-outside"), survivable=True)
    needs = ("saves",)
    strength = 0.5  # of the file that is left

    def saved(self, path: Path, context: FaultContext) -> None:
        """The newest file is the bad one."""
        os.truncate(path, int(path.stat().st_size * self.strong))
        os.kill(os.getpid(), signal.SIGKILL)
