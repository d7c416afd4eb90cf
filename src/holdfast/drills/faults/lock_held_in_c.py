"""Compiled code that keeps the interpreter lock and does not come back: no other thread of the process runs any more."""

from __future__ import annotations

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.as_script import as_script
from holdfast.drills.injection.context import FaultContext

_SOURCE = """
import ctypes


def read_sensor(seconds):
    sleep = ctypes.PyDLL(None).sleep
    while seconds > 0:
        seconds = sleep(seconds)
"""


class LockHeldInC(Fault):
    """Sleep in C, and keep the interpreter lock: a `PyDLL` does not let go of it; `strength` is in seconds."""

    code = "lock-held-in-c"
    description = "compiled code holds the interpreter lock and does not return"
    expected = Expected(findings=("hang",), causes=("stuck-compute",), survivable=True)
    strength = 3600.0

    def update(self, context: FaultContext) -> None:
        """Between two steps. A signal ends one sleep, not all of them."""
        as_script("read_sensor", _SOURCE, context.folder)(int(self.strong))
