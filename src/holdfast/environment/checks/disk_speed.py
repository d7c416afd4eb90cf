"""How fast can checkpoints be written where the runs are, and on what kind of file system is that?"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

from holdfast.environment.check import Check, Fix, Verdict, note, ok, skipped, warning
from holdfast.environment.machine import Machine
from holdfast.units import size

_BYTES, _PIECE, _LONGEST = 128 << 20, 8 << 20, 3.0
_SLOW = 50 << 20  # a second: below a single old hard disk; 1 GB then takes over 20 s
_NETWORK = ("nfs", "lustre", "beegfs", "gpfs", "ceph", "cifs", "smb", "fuse", "9p", "virtiofs", "afs")


def ask(machine: Machine) -> Verdict:
    """Write a file that is removed at once, down to the disk."""
    folder = machine.plans.folder.resolve()
    kind = file_system(folder)
    try:
        speed = write_speed(folder)
    except OSError as error:
        return skipped(f"cannot write a test file ({error.strerror}): see disk-space")
    facts = {"bytes a second": round(speed), "file system": kind}
    a_gigabyte = f"1 GiB takes {(1 << 30) / speed:.1f} s"
    if speed < _SLOW:
        fix = Fix(
            "keep runs on a local disk and copy checkpoints afterwards", ("holdfast run --folder /local/runs -- python train.py",)
        )
        return warning(f"{size(speed)}/s to {kind}: {a_gigabyte}; training waits for every save", fix, **facts)
    if kind.startswith(_NETWORK):
        message = f"{size(speed)}/s to {kind}, a file system over the network: SQLite databases (MLflow) are not safe on it"
        return note(message, Fix("put SQLite files on a local disk"), **facts)
    return ok(f"{size(speed)}/s to {kind}: {a_gigabyte}", **facts)


def write_speed(folder: Path, most: int = _BYTES) -> float:
    """Bytes a second with fsync, over at most 128 MB or three seconds and a quarter of the free space."""
    usage = os.statvfs(folder)
    most = min(most, usage.f_bavail * usage.f_frsize // 4)
    piece = os.urandom(min(_PIECE, max(most, 4096)))
    written, begun = 0, time.monotonic()
    with tempfile.TemporaryFile(dir=folder, prefix=".holdfast-doctor-") as file:
        while written < max(most, 1) and time.monotonic() - begun < _LONGEST:
            file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            written += len(piece)
    return written / max(time.monotonic() - begun, 1e-6)


def file_system(folder: Path) -> str:
    """The kind of file system that a folder lies on, by the longest mount point above it."""
    import psutil

    best = ("", "unknown")
    with contextlib.suppress(OSError):
        for mount in psutil.disk_partitions(all=True):
            point = mount.mountpoint.rstrip("/")
            if (f"{folder}/").startswith(f"{point}/") and len(point) >= len(best[0]):
                best = (point, mount.fstype or "unknown")
    return best[1]


CHECK = Check(name="disk-speed", asks="write speed for checkpoints", ask=ask, seconds=20.0)
