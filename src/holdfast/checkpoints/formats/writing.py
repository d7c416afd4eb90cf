"""Whether a file is still being written: a save underway looks like one that was interrupted."""

from __future__ import annotations

import os
from pathlib import Path

_MOST = 4_000  # processes that are asked


def who_writes(path: Path) -> int | None:
    """The process that has a file open for writing; None if there is none, or none that can be seen.

    Seen are, on Linux, the processes of the same user.
    """
    try:
        facts = path.stat()
    except OSError:
        return None
    return next((process for process in _processes() if _has_open(process, facts)), None)


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()][:_MOST]  # noqa: PTH208
    except OSError:
        return []


def _has_open(process: int, wanted: os.stat_result) -> bool:
    if process == os.getpid():
        return False
    try:
        names = os.listdir(f"/proc/{process}/fd")  # noqa: PTH208
    except OSError:
        return False
    return any(_is_writer(process, name, wanted) for name in names)


def _is_writer(process: int, name: str, wanted: os.stat_result) -> bool:
    try:
        facts = Path(f"/proc/{process}/fd/{name}").stat()
        if (facts.st_dev, facts.st_ino) != (wanted.st_dev, wanted.st_ino):
            return False
        lines = Path(f"/proc/{process}/fdinfo/{name}").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    flags = next((int(line.split()[1], 8) for line in lines if line.startswith("flags:")), 0)
    return flags & os.O_ACCMODE != os.O_RDONLY
