"""Recognise that memory ran out, and say with numbers how short it was.

By the type of the error. Where torch has no type of its own for it (the CPU allocator, a library that could not get its
workspace), words in the message are one sign, and memory that is really short the other.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from holdfast.inside.snapshots.host_memory import available_memory

_TYPES = tuple({getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError), torch.cuda.OutOfMemoryError})
_ON_HOST = ("DefaultCPUAllocator:", "DefaultAllocator:")
_ON_GPU = ("_STATUS_ALLOC_FAILED", "CUDA error: out of memory", "CUDA out of memory", "unable to find an engine to execute")
_ASKED_FOR = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB|TiB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_LITTLE = 512 << 20  # bytes; a GPU that has less to give is short, whoever failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What was known when memory ran out; bytes, None where unknown."""

    where: Literal["gpu", "host"]
    asked_for: int | None
    allocated: int | None = None
    reserved: int | None = None
    free: int | None = None
    total: int | None = None

    @property
    def code(self) -> str:
        """The finding."""
        return f"{self.where}-out-of-memory"

    def evidence(self) -> dict[str, Any]:
        """The numbers that are known, for the journal."""
        return {name: value for name, value in asdict(self).items() if value is not None and name != "where"}

    def __str__(self) -> str:
        words = (f"{name.replace('_', ' ')} {size_in_words(value)}" for name, value in self.evidence().items())
        return ", ".join(words) or "no numbers known"


def shortage_of(error: BaseException) -> Shortage | None:
    """What ran short, if this error says that memory did; ask while the error is being handled."""
    if isinstance(error, _TYPES):
        return _on_gpu(error)
    if isinstance(error, MemoryError):
        return _on_host(error)
    if not isinstance(error, RuntimeError):
        return None
    message = str(error)
    if any(sign in message for sign in _ON_HOST):
        short = _on_host(error)
        return short if short.asked_for is not None and (short.free is None or short.asked_for > short.free) else None
    if any(sign in message for sign in _ON_GPU):
        short = _on_gpu(error)
        return short if short.free is not None and _is_short(short) else None
    return None


def size_in_words(size: float) -> str:
    """Bytes as people say them: 1.5 GiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return ""


def _is_short(short: Shortage) -> bool:
    unused = (short.free or 0) + (short.reserved or 0) - (short.allocated or 0)
    return unused < max(_LITTLE, 0.05 * (short.total or 0), short.asked_for or 0)


def _asked_for(error: BaseException) -> int | None:
    found = _ASKED_FOR.search(str(error))
    return int(float(found[1]) * _UNITS[found[2]]) if found else None


def _on_gpu(error: BaseException) -> Shortage:
    asked_for = _asked_for(error)
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return Shortage(where="gpu", asked_for=asked_for)
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    free = total = None
    with contextlib.suppress(RuntimeError):
        free, total = torch.cuda.mem_get_info()
    return Shortage(where="gpu", asked_for=asked_for, allocated=allocated, reserved=reserved, free=free, total=total)


def _on_host(error: BaseException) -> Shortage:
    free, resident = available_memory(), None
    with contextlib.suppress(OSError, ValueError, ImportError):
        import resource

        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()
        virtual, resident = (int(number) * resource.getpagesize() for number in pages[:2])
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            free = max(0, min(free, limit - virtual))
    return Shortage(where="host", asked_for=_asked_for(error), allocated=resident, free=free)
