"""SIGTERM in a run that a scheduler starts again: Slurm sends it to every process of a job, long before it kills them.

The supervisor answers it for all ranks, between two steps. Here it does nothing, in the ranks as in torchrun; a script's own
handler stays, and processes that a script starts and terminates are not concerned.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

VARIABLE = "HOLDFAST_RESUMED_BY_SCHEDULER"


def leave_sigterm_to_supervisor() -> None:
    """Install the handler, in the main thread of a process that has none."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _do_nothing)
        os.register_at_fork(after_in_child=_restore)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    return None


def _restore() -> None:
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is _do_nothing:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
