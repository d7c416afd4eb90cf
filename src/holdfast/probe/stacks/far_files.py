"""Whether a process waits for a file of another machine: a network file system that pauses is waited for, as a disk is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

import psutil

from holdfast.probe.stacks.frames import ON_DISK, ProcessStacks

_FAR = re.compile(r"^(nfs\d?|cifs|smb\w*|lustre|ceph|gpfs|beegfs\w*|glusterfs|afs|fuse(\.\w+)?|fuseblk)$")
_CALLS = ("open", "stat", "read", "pread", "readv", "write", "fsync")


def waits_for_storage(stacks: ProcessStacks) -> bool:
    """Whether the system says that it waits for a disk, or it is in a call on a file of a network file system."""
    if stacks.state == ON_DISK:
        return True
    call, _, file = ((stacks.main.call if stacks.main is not None else None) or "").partition(" ")
    return call in _CALLS and file.startswith("/") and is_far(file, _mounts())


def is_far(file: str, mounts: Sequence[tuple[str, str]]) -> bool:
    """Whether a file is on a network file system, by the folders and types of what is mounted.

    Not the one that is mounted at /: in a container that is how the machine's own disk may look.
    """
    path = PurePath(file)
    above = [(folder, kind) for folder, kind in mounts if path.is_relative_to(folder)]
    folder, kind = max(above, key=lambda mount: len(mount[0]), default=("/", ""))
    return folder != "/" and bool(_FAR.match(kind))


def _mounts() -> list[tuple[str, str]]:
    try:
        return [(partition.mountpoint, partition.fstype) for partition in psutil.disk_partitions(all=True)]
    except OSError:
        return []
