"""Memory of the process and of its GPU, read without a system call where that can be had."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class ProcessMemory:
    """Resident memory of this process; the file is kept open, so a reading costs a few microseconds.

    A descriptor of /proc/self belongs to the process that opened it: a forked child must make its own.
    """

    def __init__(self) -> None:
        self.latest = 0
        self._read_at = 0.0
        try:
            self._file: Any = open("/proc/self/statm", "rb", buffering=0)  # noqa: PTH123, SIM115 - kept open on purpose
        except OSError:
            self._file = None

    def read(self) -> int:
        """Resident bytes now."""
        if self._file is not None:
            self.latest = int(os.pread(self._file.fileno(), 128, 0).split()[1]) * _PAGE
        else:
            self.latest = _peak_resident()
        return self.latest

    def read_at_most_every(self, seconds: float, now: float) -> int:
        """Resident bytes, not older than `seconds`."""
        if now - self._read_at > seconds:
            self._read_at = now
            self.read()
        return self.latest


def resident_of(pid: int) -> int | None:
    """Resident bytes of another process, or None if it is gone or the system has no /proc."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:  # noqa: PTH123 - pathlib costs more than the reading
            return int(file.read(128).split()[1]) * _PAGE or None  # one that has ended and was not waited for has none
    except (OSError, ValueError, IndexError):
        return None


def _peak_resident() -> int:
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def gpu_memory(device: torch.device) -> tuple[int, int, int]:
    """Bytes allocated, reserved and the peak of the allocated, from the allocator's counters; no synchronisation."""
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    allocated = stats.get("allocated_bytes", {}).get("all", {})
    reserved = stats.get("reserved_bytes", {}).get("all", {})
    return allocated.get("current", 0), reserved.get("current", 0), allocated.get("peak", 0)
