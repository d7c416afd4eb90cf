"""Spare folders: where a checkpoint is put together before it gets its name, and where one goes that is being removed.

Their names begin with a dot and say which process made them. Those of a process that is gone are removed by the next one that
writes here; those of a living one are left alone, as are, for a week, those of another machine.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import socket
import time
from pathlib import Path

from holdfast.checkpoints.manifest import MANIFEST

_NAME = re.compile(r"\.(?:new|gone)-.+~([^~]+)~(\d+)~(\d+)~\d+$")
_ABANDONED = 7 * 86400.0  # seconds
_count = itertools.count(1)


def spare_name(kind: str, name: str) -> str:
    """A name that no other process, and nothing else in this one, uses; `kind` is `new` or `gone`."""
    return f".{kind}-{name}~{_host()}~{os.getpid()}~{_started(os.getpid())}~{next(_count)}"


def remove(folder: Path) -> None:
    """Remove a folder: first it goes out of sight in one move, then its manifest goes, then the rest."""
    gone = folder.with_name(spare_name("gone", folder.name))
    folder.rename(gone)
    clear(gone)


def clear(spare: Path) -> None:
    """Remove a spare folder; what cannot be removed is left for later."""
    with contextlib.suppress(OSError):
        (spare / MANIFEST).unlink()
    shutil.rmtree(spare, ignore_errors=True)


def clear_abandoned(parent: Path) -> list[Path]:
    """Remove the spare folders and files of processes that are gone; returns them."""
    cleared = []
    with contextlib.suppress(OSError):
        for path in parent.iterdir():
            if (match := _NAME.match(path.name)) and _is_abandoned(path, match[1], int(match[2]), int(match[3])):
                if path.is_dir() and not path.is_symlink():
                    clear(path)
                else:
                    path.unlink(missing_ok=True)
                cleared.append(path)
    return cleared


def _is_abandoned(path: Path, host: str, pid: int, started: int) -> bool:
    if host == _host():
        return not _is_alive(pid, started)
    try:
        newest = max(entry.stat().st_mtime for entry in (path, *path.rglob("*")))
    except OSError:
        return False
    return time.time() - newest > _ABANDONED


def _is_alive(pid: int, started: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    now = _started(pid)
    return now in (0, started) or started == 0


def _started(pid: int) -> int:
    """When a process began, in the kernel's count, so that a number that is used again is told apart; 0 if it cannot be told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def _host() -> str:
    return re.sub(r"[^\w.-]", "_", socket.gethostname()) or "host"
