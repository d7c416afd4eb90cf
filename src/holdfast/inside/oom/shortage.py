"""Recognise an out-of-memory error, and report how much memory was missing.

`holdfast.memory_errors` knows the types and texts. A GPU library without workspace fails with an ambiguous text: then the GPU
must really be short of memory.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from holdfast import units
from holdfast.memory_errors import GPU_LIBRARY_TEXTS, NO_ENGINE_TEXTS, place_of_memory_error
from holdfast.state.host_copy import available_memory

_ASKED_FOR = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|[KMGT]i?B)")
_UNITS = {"bytes": 1, **{f"{letter}{i}B": 1 << 10 * power for power, letter in enumerate("KMGT", 1) for i in ("i", "")}}
_LITTLE = 512 << 20  # bytes; a GPU with less unused memory is short


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Memory at the time of the error, in bytes; None where unknown."""

    where: Literal["gpu", "host"]
    asked_for: int | None
    allocated: int | None = None
    reserved: int | None = None
    free: int | None = None
    total: int | None = None

    @property
    def code(self) -> str:
        """The code of the finding."""
        return f"{self.where}-out-of-memory"

    def evidence(self) -> dict[str, Any]:
        """The known values, for the journal."""
        return {name: value for name, value in asdict(self).items() if value is not None and name != "where"}

    def __str__(self) -> str:
        sizes = (f"{name.replace('_', ' ')} {units.size(size)}" for name, size in self.evidence().items())
        return ", ".join(sizes) or "sizes unknown"


def shortage_of(error: BaseException) -> Shortage | None:
    """The shortage behind an error, or None; call it while the error is being handled."""
    place = place_of_memory_error(error)
    if place is not None:
        return _on_gpu(error) if place == "gpu" else _on_host(error)
    if isinstance(error, RuntimeError) and any(text in str(error) for text in (*GPU_LIBRARY_TEXTS, *NO_ENGINE_TEXTS)):
        shortage = _on_gpu(error)
        return shortage if shortage.free is not None and _is_real(shortage) else None
    return None


def _is_real(shortage: Shortage) -> bool:
    unused = (shortage.free or 0) + (shortage.reserved or 0) - (shortage.allocated or 0)
    return unused < max(_LITTLE, 0.05 * (shortage.total or 0), shortage.asked_for or 0)


def _asked_for(error: BaseException) -> int | None:
    match = _ASKED_FOR.search(str(error))
    return int(float(match[1]) * _UNITS[match[2]]) if match else None


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
        virtual, resident = (int(count) * resource.getpagesize() for count in pages[:2])
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            free = max(0, min(free, limit - virtual))
    return Shortage(where="host", asked_for=_asked_for(error), allocated=resident, free=free)
