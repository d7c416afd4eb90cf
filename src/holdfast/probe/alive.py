"""Whether a process still lives, by its number and when it began."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import psutil

from holdfast.signals.start_ticks import start_ticks


def lives(info: Mapping[str, Any]) -> bool | None:
    """Whether the process of a `process.json` is alive; None if it is another machine's."""
    return same_process(info.get("pid"), info.get("started"), info.get("host"), info.get("start_ticks"))


def same_process(pid: Any, since: Any, host: Any, ticks: Any = None) -> bool | None:
    """Whether the process still lives; None if it is another machine's. A number that was reused does not count.

    `ticks` is when it began in the kernel's count. Without it the clock decides, and one that was set forward since is mistaken.
    """
    if host is not None and host != socket.gethostname():
        return None
    if isinstance(ticks, int) and isinstance(pid, int) and (now := start_ticks(pid)) is not None:
        return now == ticks
    try:
        process = psutil.Process(int(pid))
        born, status = process.create_time(), process.status()
    except psutil.AccessDenied:
        return True
    except (psutil.Error, TypeError, ValueError):
        return False
    if status == psutil.STATUS_ZOMBIE:
        return False
    return not isinstance(since, (int, float)) or bool(born <= since + 2.0)
