"""Memory of this process and of its loader workers, from /proc; elsewhere the peak that the system tells."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path
from typing import Any

_PROC = Path("/proc/self")


def start_peak() -> None:
    """Let the peak begin again; where the system cannot, it stays the highest so far."""
    with contextlib.suppress(OSError):
        (_PROC / "clear_refs").write_text("5")


def resident_peak() -> int:
    """Bytes that were resident at most since `start_peak`."""
    try:
        return _field(_PROC / "status", "VmHWM:") * 1024
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def host_memory() -> dict[str, Any]:
    """Resident memory of this process, and what each of its children holds alone."""
    try:
        children = [int(word) for task in (_PROC / "task").iterdir() for word in (task / "children").read_text().split()]
        own = _field(_PROC / "status", "VmRSS:") * 1024
    except (OSError, IndexError, ValueError):
        return {"host": resident_peak(), "workers": []}
    return {"host": own, "workers": [held for held in map(_held_alone, children) if held]}


def _held_alone(pid: int) -> int:
    """Bytes that would be free if the process were not there."""
    try:
        file = Path(f"/proc/{pid}/smaps_rollup")
        return 1024 * (_field(file, "Private_Clean:") + _field(file, "Private_Dirty:"))
    except (OSError, IndexError, ValueError):
        return 0


def _field(file: Path, name: str) -> int:
    return int(file.read_text().split(name)[1].split()[0])
