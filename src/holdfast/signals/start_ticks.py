"""When a process began, in the kernel's count since the machine was started: no clock that is set changes it."""

from __future__ import annotations

from pathlib import Path

_START = 19  # field 22; two of them stand before the bracket that ends the name


def start_ticks(pid: int) -> int | None:
    """The count at which a process began; None where the system does not tell, and for one that has ended."""
    try:
        after_the_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if after_the_name[0] in (b"Z", b"X") else int(after_the_name[_START])
    except (OSError, ValueError, IndexError):
        return None
