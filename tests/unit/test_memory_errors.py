"""Memory that ran out is recognised by type and by every text that was recorded for it, and nothing else is taken for it."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import sys

import numpy as np
import pytest
import torch
from every_case import every_case

from holdfast.memory_errors import place_of_memory_error, place_of_memory_text

RECORDED = [  # the error as it was met, and where memory ran out
    (
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.6 GiB"),
        "gpu",
    ),
    (torch.cuda.OutOfMemoryError("Allocation on device would exceed allowed memory. (out of memory)"), "gpu"),
    (torch.cuda.OutOfMemoryError("a wording that nobody has seen yet"), "gpu"),
    (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity)"), "gpu"),
    (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at another call"), "gpu"),
    (RuntimeError("HIP out of memory. Tried to allocate 512.00 MiB. GPU 1 has a total capacity of 63.98 GiB"), "gpu"),
    (RuntimeError("XPU out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 15.56 GiB"), "gpu"),
    (RuntimeError("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"), "gpu"),
    (RuntimeError("MPS backend out of memory (MPS allocated: 17.54 GB). Tried to allocate 768.00 MB on private pool."), "gpu"),
    (RuntimeError("NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"), "gpu"),
    (
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 134217728 bytes. Error code 12 (Cannot allocate memory)"
        ),
        "host",
    ),
    (
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:113] data. DefaultCPUAllocator: not enough memory: "
            "you tried to allocate 1073741824 bytes."
        ),
        "host",
    ),
    (
        RuntimeError(
            "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  ...\n"
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 98304 bytes. Error code 12 (Cannot allocate memory)\n"
        ),
        "host",
    ),
    (RuntimeError("Caught MemoryError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):"), "host"),
    (MemoryError("Caught MemoryError in DataLoader worker process 3."), "host"),
    (RuntimeError("unable to mmap 4194304 bytes from file </torch_123_45_6>: Cannot allocate memory (12)"), "host"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "host"),  # fork of a loader worker
    (RuntimeError("std::bad_alloc"), "host"),
    (MemoryError(), "host"),
]
OTHERS = [
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),  # has other reasons too
    RuntimeError("unable to write to file </torch_1_2>: No space left on device (28)"),  # shared memory, not memory
    RuntimeError("DataLoader worker (pid 4021) is killed by signal: Bus error."),
    RuntimeError("The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1"),
    OSError(errno.ENOSPC, "No space left on device"),
    ValueError("CUDA out of memory"),  # raised by a check of somebody's own
    KeyError("MemoryError"),
]


def name(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:70]


@every_case(("error", "place"), RECORDED, ids=lambda one: name(one) if isinstance(one, BaseException) else one)
def test_a_recorded_error_is_recognised(error: BaseException, place: str) -> None:
    assert place_of_memory_error(error) == place


@every_case("error", OTHERS, ids=name)
def test_another_error_is_not_taken_for_it(error: BaseException) -> None:
    assert place_of_memory_error(error) is None


def test_it_is_recognised_in_what_a_process_printed() -> None:
    traceback = "Traceback (most recent call last):\n  File 'train.py', line 3, in <module>\n"
    assert place_of_memory_text(traceback + "MemoryError\n") == "host"
    assert place_of_memory_text(traceback + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB") == "gpu"
    assert place_of_memory_text(traceback + "KeyError: 'memory'\nGPU memory: 22.1 GB allocated") is None


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space of the process")
@every_case("what", ["torch", "numpy", "bytes", "mmap"])
def test_what_this_machine_raises_is_recognised(what: str) -> None:
    ask = {
        "torch": lambda: torch.empty(1 << 40, dtype=torch.uint8),
        "numpy": lambda: np.empty(1 << 40, dtype=np.uint8),
        "bytes": lambda: bytearray(1 << 40),
        "mmap": lambda: mmap.mmap(-1, 1 << 40),
    }[what]
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, before[1]))
    try:
        with pytest.raises((RuntimeError, MemoryError, OSError)) as met:
            ask()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert place_of_memory_error(met.value) == "host", (os.uname().machine, met.value)
