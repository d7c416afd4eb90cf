"""How much memory a run may really use: the limit of its control group against what programs are shown."""

from __future__ import annotations

from holdfast.environment.check import Check, Fix, Verdict, note, ok, problem, warning
from holdfast.environment.machine import Machine
from holdfast.units import size

_LITTLE, _NOTHING = 4 << 30, 1 << 30  # torch with two loader workers takes about 1 GB before there is any data


def ask(machine: Machine, *, available: int | None = None) -> Verdict:
    """What is left, and whether the machine shows more than there is."""
    limits, total = machine.platform.limits, machine.platform.memory
    left = _available() if available is None else available
    facts = {"total": total, "available": left, "limit": limits.memory}
    if limits.memory is not None and limits.memory < total:
        left = min(left, limits.memory - (limits.memory_used or 0))
        facts["available"] = left
    fewer = Fix("end other processes, or use fewer workers and no memory cache")
    if left < _LITTLE:
        level = problem if left < _NOTHING else warning
        return level(f"only {size(left)} of memory left: the run may be killed (exit 137)", fewer, **facts)
    if limits.memory is not None and limits.memory < total:
        message = (
            f"{size(limits.memory)} allowed by the control group; programs see {size(total)}, and are killed when they use it"
        )
        return note(message, Fix("set the sizes of caches and buffers yourself"), **facts)
    return ok(f"{size(left)} of {size(total)} available", **facts)


def _available() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


CHECK = Check(name="memory", asks="memory and its limit", ask=ask)
