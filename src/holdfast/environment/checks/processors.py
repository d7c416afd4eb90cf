"""How many processors a run may really use, against the threads that torch would start."""

from __future__ import annotations

import math
import os

from holdfast.environment.check import Check, Fix, Verdict, note, ok, warning
from holdfast.environment.machine import Machine
from holdfast.units import count


def ask(machine: Machine) -> Verdict:
    """Quota and affinity against cores and threads."""
    platform, threads = machine.platform, machine.torch.threads
    usable = max(1, math.floor(platform.usable))
    facts = {
        "cores": platform.cores, "affinity": platform.affinity, "quota": platform.limits.cpus, "torch threads": threads,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }  # fmt: skip
    fix = Fix("use as many threads as processors", (f"export OMP_NUM_THREADS={usable}",))
    if threads is not None and threads > math.ceil(platform.usable):
        message = (
            f"{platform.usable:g} of {platform.cores} processors may be used, but torch starts {threads} threads that share them"
        )
        return warning(message, fix, **facts)
    if platform.usable < platform.cores:
        message = f"{platform.usable:g} of {platform.cores} processors may be used; loader workers beyond that only queue"
        return note(message, Fix(f"at most {usable} loader workers"), **facts)
    if threads == 1 < usable:
        message = f"torch uses 1 thread, {usable} processors are there" + (
            " (OMP_NUM_THREADS)" if facts["OMP_NUM_THREADS"] else ""
        )
        return note(message, fix, **facts)
    of_torch = f", {count(threads, 'thread')} of torch" if threads is not None else ""
    return ok(f"{count(platform.cores, 'processor')}{of_torch}", **facts)


CHECK = Check(name="processors", asks="processors and threads", ask=ask, seconds=120.0, heavy=True)
