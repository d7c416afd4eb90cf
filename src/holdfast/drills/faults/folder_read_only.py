"""The folder of the run becomes read-only for a while: a file server that fails over, a quota, an administrator."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from pathlib import Path

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.context import FaultContext


class FolderReadOnly(Fault):
    """The run folder is mounted over itself, for reading only; `strength` is in seconds."""

    code = "folder-read-only"
    description = "the run folder is read-only for 5 s"
    expected = Expected(
        findings=("holdfast-degraded", "checkpoint-not-saved", "disk-full"),
        causes=("no-permission",),
        survivable=True,
        info_is_enough=True,
    )
    needs = ("ranks",)
    strength = 5.0

    def update(self, context: FaultContext) -> None:
        """Between two steps."""
        if os.geteuid():
            raise CannotHappen("only root can make a folder read-only for root")
        run = context.folder.parent / "run"
        folder = shlex.quote(str(run))
        script = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}; sleep {self.strong}; umount -l {folder}"
        subprocess.Popen(["sh", "-c", script], start_new_session=True)
        _wait_until_read_only(run)


def _wait_until_read_only(run: Path) -> None:
    for _ in range(100):
        if os.statvfs(run).f_flag & os.ST_RDONLY:
            return
        time.sleep(0.05)
    raise CannotHappen("the folder could not be mounted read-only")
