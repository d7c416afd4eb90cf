"""The disk is full when the script saves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class DiskFull(Fault):
    """The next save gets no further than its first bytes: the file is there, and useless."""

    code = "disk-full"
    description = "the disk is full at the script's next save"
    expected = Expected(findings=("disk-full",), causes=("no-room-for-a-save",), survivable=True)
    needs = ("saves",)

    def saving(self, path: Path, context: FaultContext) -> None:
        """What the system says then."""
        path.write_bytes(b"PK\x03\x04")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
