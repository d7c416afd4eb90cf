"""Is this error memory that ran out? By its type first, by its text second. No other file knows these texts.

Torch has a type of its own for GPUs only. The CPU allocator raises a plain RuntimeError whose wording differs between
architectures, and what a loader worker met comes back as text. Imports neither torch nor numpy, so that every unit may ask.
"""

from __future__ import annotations

import errno
import re
from typing import Literal

Place = Literal["gpu", "host"]

GPU_TEXTS = (
    "CUDA out of memory",
    "HIP out of memory",
    "XPU out of memory",
    "MPS backend out of memory",
    "CUDA error: out of memory",
    "HIP error: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
    "Cuda failure 'out of memory'",  # NCCL's
    "Cuda failure 2 'out of memory'",
    "Allocation on device would exceed allowed memory",  # with cudaMallocAsync
    "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
)
GPU_LIBRARY_TEXTS = (  # a library that got no work space says this, and says it for other reasons too
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUSPARSE_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED",
)
NO_ENGINE_TEXTS = (
    "Unable to find a valid cuDNN algorithm to run convolution",
    "unable to find an engine to execute this computation",
)
HOST_TEXTS = (
    "DefaultCPUAllocator: not enough memory",  # posix_memalign gave nothing (aarch64, macOS, Windows)
    "DefaultCPUAllocator: can't allocate memory",  # it gave an error (x86_64)
    "[Errno 12] Cannot allocate memory",  # fork, mmap, read
    "Cannot allocate memory (12)",  # torch's mmap of shared memory
    "std::bad_alloc",
    "_ArrayMemoryError",  # NumPy's
)
_MEMORY_ERROR = re.compile(r"\bMemoryError\b")


def place_of_memory_error(error: BaseException) -> Place | None:
    """Where memory ran out, if this error says that it did."""
    if any(one.__name__ == "OutOfMemoryError" and one.__module__.partition(".")[0] == "torch" for one in type(error).__mro__):
        return "gpu"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "host"
    return place_of_memory_text(str(error)) if isinstance(error, RuntimeError) else None


def place_of_memory_text(text: str) -> Place | None:
    """Where memory ran out, by what was printed: a message, a traceback, a whole log."""
    lower = text.lower()
    if any(one.lower() in lower for one in GPU_TEXTS):
        return "gpu"
    return "host" if any(one.lower() in lower for one in HOST_TEXTS) or _MEMORY_ERROR.search(text) else None
