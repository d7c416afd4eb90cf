"""The machine has no memory left for the process: a limit of the shell or of the batch system, reached in the middle of a run."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.context import FaultContext

_PIECE = 64 << 20


class HostOom(Fault):
    """A limit on the address space, a little above what is taken; then memory is asked for until there is none."""

    code = "host-oom"
    description = "host memory runs out: an allocation fails"
    expected = Expected(
        findings=("host-out-of-memory",),
        causes=("limit-on-the-process",),
        survivable=True,
    )
    strength = 256.0  # MB that are left

    def update(self, context: FaultContext) -> None:
        """Between two steps; what was taken is given back as the error passes by."""
        if not sys.platform.startswith("linux"):
            raise CannotHappen("the size of a process cannot be limited on this system")
        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (taken + int(self.strong * (1 << 20)), most))
        kept = []
        while True:
            kept.append(torch.empty(_PIECE, dtype=torch.uint8))
