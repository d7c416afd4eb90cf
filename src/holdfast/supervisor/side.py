"""The outside of `holdfast.watch`: `python -m holdfast.supervisor.side FOLDER PID`.

Lives as long as process PID and its run, then tidies up and goes. It never says a word: what it could not do is in the journal.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.launch import RunInfo
from holdfast.supervisor.outside import Outside

_NICENESS = 10
_EVERY_SECONDS = 1.0


def main(arguments: list[str]) -> int:
    """Watch from outside until the process is gone. Exits 0, or 2 if it was called wrongly."""
    try:
        folder, pid = Path(arguments[0]), int(arguments[1])
        run = RunFolder.open(folder)
    except (IndexError, ValueError, OSError, HoldfastError):
        return 2
    _withdraw()
    with Outside(run, pid, Trouble(run.journal), hurry=threading.Event()):
        wait_until_over(run, pid)
        if not run.info().get("ended"):
            RunInfo(run).note(ended=time.time())
    return 0


def wait_until_over(run: RunFolder, pid: int) -> None:
    """Return when the process is gone, or has closed its run; another one that gets its number later is not mistaken for it."""
    is_gone = _watched(pid)
    while not is_gone(_EVERY_SECONDS):
        if run.info().get("ended"):
            return


def _watched(pid: int) -> Callable[[float], bool]:
    """Asks whether a process is gone, and waits for it so many seconds."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return lambda _: True
    except (AttributeError, OSError):  # not offered by this system
        return _polled(pid)
    return lambda seconds: bool(select.select([descriptor], [], [], seconds)[0])


def _polled(pid: int) -> Callable[[float], bool]:
    import psutil

    try:
        process = psutil.Process(pid)
    except psutil.Error:
        return lambda _: True

    def is_gone(seconds: float) -> bool:
        time.sleep(seconds)
        with contextlib.suppress(psutil.Error):
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        return True

    return is_gone


def _withdraw() -> None:
    """Own session, low priority, no standard streams: nothing typed or closed in the terminal reaches this process."""
    with contextlib.suppress(OSError):
        os.setsid()
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    silence = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(silence, fd)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)
