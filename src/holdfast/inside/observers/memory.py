"""Resident memory of processes, and allocator statistics of GPUs."""

from __future__ import annotations

import contextlib
import os
import sys

import torch

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class ProcessMemory:
    """Resident memory of this process. The file stays open, so that reading costs a few microseconds.

    It belongs to the process that opened it: a forked child must create its own object. A script that becomes a daemon closes all
    descriptors, and may get this one for a file of its own: it is never closed here, and read only as long as it is what it was.
    """

    def __init__(self) -> None:
        self.latest = 0
        self._read_at = 0.0
        self._open()

    def _open(self) -> None:
        self._descriptor = -1
        with contextlib.suppress(OSError):
            self._descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            self._file = os.fstat(self._descriptor)

    def read(self) -> int:
        """Resident bytes now."""
        if self._descriptor >= 0 and not self._is_open():
            self._open()
        if self._descriptor >= 0:
            self.latest = int(os.pread(self._descriptor, 128, 0).split()[1]) * _PAGE
        else:
            self.latest = _peak_resident()
        return self.latest

    def _is_open(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._file)
        except OSError:
            return False

    def read_at_most_every(self, seconds: float, now: float) -> int:
        """Resident bytes, at most `seconds` old."""
        if now - self._read_at > seconds:
            self._read_at = now
            self.read()
        return self.latest


def resident_of(pid: int) -> int | None:
    """Resident bytes of another process; None if it is gone or there is no /proc."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:  # noqa: PTH123 - pathlib costs more than the read
            return int(file.read(128).split()[1]) * _PAGE or None  # 0 for a zombie
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
    """Allocated, reserved and peak allocated bytes, from the allocator's counters: no synchronisation."""
    stats = torch.cuda.memory_stats_as_nested_dict(device)
    allocated = stats.get("allocated_bytes", {}).get("all", {})
    reserved = stats.get("reserved_bytes", {}).get("all", {})
    return allocated.get("current", 0), reserved.get("current", 0), allocated.get("peak", 0)
