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
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
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
        members |= {one.pid: one for one in (top, *top.children(recursive=True))}
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if one.pid not in members and str(drill) in one.environ().get("HOLDFAST_DRILL", ""):
                members[one.pid] = one
    return [one for one in members.values() if _lives(one)]


def _lives(one: psutil.Process) -> bool:
    try:
        return bool(one.is_running() and one.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
