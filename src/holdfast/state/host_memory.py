"""Host memory: how much this process may still use, and pinned memory that a GPU copies from and to while the host continues."""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from holdfast.environment.cgroup import Limits, read_limits


def available_memory(limits: Limits | None = None) -> int:
    """Bytes that can be allocated without swapping: of the machine, and of the container that the process runs in."""
    limits = limits or read_limits()
    of_machine = _of_machine()
    return max(0, min(of_machine, limits.memory - (limits.memory_used or 0))) if limits.memory is not None else of_machine


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
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 4 << 30
