"""A bit of the newest checkpoint is wrong on the disk, and then the process is killed: it must not be gone on from."""

from __future__ import annotations

import atexit
import os
import signal
import struct
import zipfile
from pathlib import Path
from typing import Any

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class CheckpointBitFlip(Fault):
    """The file is whole when the save is done; a step later, or at the end, a bit of it flips, and the process gets SIGKILL."""

    code = "checkpoint-bit-flip"
    description = "a bit of the newest checkpoint flips on the disk, and the process is killed a step later"
    expected = Expected(findings=("checkpoint-torn",), causes=("file-changed-on-disk", "killed-from-outside"), survivable=True)
    needs = ("saves",)

    def saved(self, path: Path, context: FaultContext) -> None:
        """By then the script may have given the file another name: the open file stays the same."""
        place = _in_the_largest(path)
        file = os.open(path, os.O_RDWR)

        def damage(*_: Any) -> None:
            (byte,) = os.pread(file, 1, place)
            os.pwrite(file, bytes([byte ^ 0x40]), place)
            os.fsync(file)
            os.kill(os.getpid(), signal.SIGKILL)

        context.optimizer.register_step_post_hook(damage)
        atexit.register(damage)  # of the last save of a training: there is no step after it


def _in_the_largest(path: Path) -> int:
    """A place in the middle of the largest tensor; of a file that is no archive, in its middle."""
    if not zipfile.is_zipfile(path):
        return path.stat().st_size // 2
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
    with path.open("rb") as file:
        file.seek(largest.header_offset + 26)
        name, more = struct.unpack("<HH", file.read(4))
    return int(largest.header_offset + 30 + name + more + largest.file_size // 2)
