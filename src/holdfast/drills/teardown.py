"""Stop a trial that takes too long: the command, all its children, and processes that left its group."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from pathlib import Path

import psutil

_ASK_SECONDS, _KILL_SECONDS = 10.0, 10.0


def kill_all(process: subprocess.Popen[bytes], drill: Path) -> None:
    """TERM to the command, which is `holdfast run` and passes it on; then KILL to all that remain."""
    with contextlib.suppress(OSError):
        process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_ASK_SECONDS)
    deadline = time.monotonic() + _KILL_SECONDS
    while left := _members(process.pid, drill):
        for member in left:
            with contextlib.suppress(psutil.Error):
                member.kill()
        process.poll()
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_SECONDS)


def _members(pid: int, drill: Path) -> list[psutil.Process]:
    """The command, its descendants, and processes with the drill's folder in their environment."""
    members: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(pid)
        members |= {process.pid: process for process in (top, *top.children(recursive=True))}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid not in members and str(drill) in process.environ().get("HOLDFAST_DRILL", ""):
                members[process.pid] = process
    return [member for member in members.values() if _lives(member)]


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
