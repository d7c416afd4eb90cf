"""Recognise that memory ran out, and report how short it was.

`holdfast.memory_errors` knows types and texts. A library that got no work space on a GPU fails with a text that has other
reasons too: there the card must really be short of memory.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from holdfast.memory_errors import GPU_LIBRARY_TEXTS, NO_ENGINE_TEXTS, place_of_memory_error
from holdfast.state.host_copy import available_memory

_ASKED_FOR = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|[KMGT]i?B)")
_UNITS = {"bytes": 1, **{f"{letter}{i}B": 1 << 10 * power for power, letter in enumerate("KMGT", 1) for i in ("i", "")}}
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
    place = place_of_memory_error(error)
    if place is not None:
        return _on_gpu(error) if place == "gpu" else _on_host(error)
    if isinstance(error, RuntimeError) and any(one in str(error) for one in (*GPU_LIBRARY_TEXTS, *NO_ENGINE_TEXTS)):
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
