"""The training goes first: work that can wait is done at low priority."""

from __future__ import annotations

import contextlib
import os
import threading

IN_THE_BACKGROUND, SOMEBODY_WAITS = 10, 5


def be_nice(niceness: int = IN_THE_BACKGROUND) -> None:
    """Let the training go first; on Linux this is a matter of the calling thread alone, and of those that it starts."""
    with contextlib.suppress(OSError, AttributeError):
        if os.uname().sysname == "Linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
