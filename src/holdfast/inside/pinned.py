"""Host memory that a GPU copies from and to while the host goes on.

Not torch's own pinned memory: once a kernel has failed, freeing that aborts the process, and an error that Python told in a
traceback would end in SIGABRT. Memory that was registered by hand is just freed.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Memory = npt.NDArray[np.uint8]


def pin(memory: Memory) -> bool:
    """Register memory with the driver; False if the system does not allow it. It must be unpinned before it is freed."""
    try:
        return int(_runtime().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)) == 0
    except Exception:  # noqa: BLE001 - without pinned memory the copies are slower, and that is all
        return False


def unpin(address: int) -> None:
    """Take it back; nothing may be copying from or to it any more."""
    with contextlib.suppress(Exception):  # at the end of the process the driver may be gone before us
        _runtime().cudaHostUnregister(address)


def pinned_zeros(count: int, dtype: torch.dtype) -> torch.Tensor:
    """A vector of zeros in pinned memory of its own; it is unpinned when nobody has it any more."""
    memory = np.frombuffer(mmap.mmap(-1, max(1, count) * dtype.itemsize), np.uint8)  # whole pages: no other memory is in them
    if not pin(memory):
        return torch.zeros(count, dtype=dtype, device="cpu", pin_memory=True)
    weakref.finalize(memory, unpin, memory.ctypes.data).atexit = False
    return torch.frombuffer(memory, dtype=dtype, count=count) if count else torch.zeros(0, dtype=dtype, device="cpu")


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
