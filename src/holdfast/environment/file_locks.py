"""Who has a file open, and who holds a lock on it, by what Linux tells under /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a file open; `writes` if it holds a lock for writing."""

    pid: int
    command: str
    writes: bool

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


def holders(file: Path) -> list[Holder]:
    """Processes with the file or a companion of it (SQLite's -wal, -shm, -journal) open; those that lock it first."""
    inodes = {status.st_ino for path in _companions(file) if (status := _stat(path)) is not None}
    locking = {pid for pid, inode in _write_locks() if inode in inodes}
    opened = set(_opened_by({str(path.resolve()) for path in _companions(file)}))
    processes = [Holder(pid, _command(pid), pid in locking) for pid in sorted(opened | locking)]
    return sorted(processes, key=lambda process: not process.writes)


def _companions(file: Path) -> list[Path]:
    return [file, *(file.with_name(f"{file.name}{end}") for end in ("-wal", "-shm", "-journal"))]


def _write_locks() -> Iterator[tuple[int, int]]:
    """Process and inode of each lock for writing."""
    with contextlib.suppress(OSError):
        for line in (_PROC / "locks").read_text().splitlines():
            fields = line.split()
            if len(fields) >= 6 and fields[1] != "->" and fields[3] == "WRITE" and fields[4].lstrip("-").isdigit():
                yield int(fields[4]), int(fields[5].rpartition(":")[2])


def _opened_by(paths: set[str]) -> Iterator[int]:
    for process in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for link in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(link.readlink()) in paths:
                        yield int(process.name)
                        break


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        arguments = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        return " ".join(arguments).strip()[:60] or "unknown"
    return "unknown"


def _stat(path: Path) -> os.stat_result | None:
    with contextlib.suppress(OSError):
        return path.stat()
    return None
