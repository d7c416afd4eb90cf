"""Two threads take two locks in a different order, and wait for each other."""

from __future__ import annotations

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.as_script import as_script
from holdfast.drills.injection.context import FaultContext

_SOURCE = """
import threading

samples_lock, log_lock, taken = threading.Lock(), threading.Lock(), threading.Event()


def write_samples():
    with log_lock:
        taken.set()
        with samples_lock:
            pass


def log_samples():
    with samples_lock:
        threading.Thread(target=write_samples, name="writes-samples", daemon=True).start()
        taken.wait()
        with log_lock:
            pass
"""


class Deadlock(Fault):
    """The training thread and another one."""

    code = "deadlock"
    description = "the training thread and another thread wait for each other's lock"
    expected = Expected(findings=("hang", "collective-stall"), causes=("deadlock",), survivable=True)

    def update(self, context: FaultContext) -> None:
        """Between two steps."""
        as_script("log_samples", _SOURCE, context.folder)()
