"""Host memory: how much this process may still use, and pinned memory that a GPU copies from and to while the host continues."""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

_UNLIMITED = 1 << 60


def available_memory() -> int:
    """Bytes that can be allocated without swapping."""
    return max(0, min([_of_machine(), *_of_groups()]))


def snapshot_memory(fraction: float = 0.2) -> int:
    """Bytes that all snapshots of this rank may use: a fraction of what is available, divided among the ranks here."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(available_memory() * fraction) // max(1, int(ranks) if ranks.isdigit() else 1)


def pin(memory: npt.NDArray[np.uint8]) -> bool:
    """Register memory with the driver; False if the system does not allow it. It must be unpinned before it is freed.

    Not torch's own pinned memory: after a kernel has failed, freeing that aborts the process, and an error that Python printed
    in a traceback would end in SIGABRT.
    """
    try:
        return int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)) == 0  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - without pinned memory the copies are slower, and that is all
        return False


def unpin(address: int) -> None:
    """Unregister it; no copy from or to it may be running."""
    with contextlib.suppress(Exception):  # at exit the driver may be gone before us
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def pinned_zeros(length: int, dtype: torch.dtype) -> torch.Tensor:
    """A vector of zeros in pinned memory of its own; it is unpinned when nobody holds it any more."""
    memory = np.frombuffer(mmap.mmap(-1, max(1, length) * dtype.itemsize), np.uint8)  # whole pages: no other memory is in them
    if not pin(memory):
        return torch.zeros(length, dtype=dtype, device="cpu", pin_memory=True)
    weakref.finalize(memory, unpin, memory.ctypes.data).atexit = False
    return torch.frombuffer(memory, dtype=dtype, count=length) if length else torch.zeros(0, dtype=dtype, device="cpu")


def _of_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (OSError, ValueError, AttributeError):
        return 4 << 30


def _of_groups(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Iterator[int]:
    """What is left in each control group of this process that has a limit (both versions)."""
    try:
        entries = [line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines()]
    except OSError:
        entries = []
    for _, controllers, path in (entry for entry in entries if len(entry) == 3):
        if not controllers:
            yield from _upwards(root, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            yield from _upwards(root / "memory", path, *names)


def _upwards(top: Path, path: str, limit: str, usage: str, cache: str) -> Iterator[int]:
    folder = top / path.lstrip("/")
    for group in (folder, *folder.parents):
        allowed, used = _number(group / limit), _number(group / usage)
        if allowed is not None and used is not None and allowed < _UNLIMITED:
            yield allowed - used + _statistic(group / "memory.stat", cache)
        if group == top:
            return


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _statistic(path: Path, name: str) -> int:
    """Memory of a group that caches files and is freed when it is needed."""
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
