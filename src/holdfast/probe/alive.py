"""Whether a process still lives, by its number and when it began."""

from __future__ import annotations

import socket
from typing import Any

import psutil


def same_process(pid: Any, since: Any, host: Any) -> bool | None:
    """Whether the process still lives; None if it is another machine's. A number that was given anew does not count."""
    if host is not None and host != socket.gethostname():
        return None
    try:
        process = psutil.Process(int(pid))
        born, status = process.create_time(), process.status()
    except psutil.AccessDenied:
        return True
    except (psutil.Error, TypeError, ValueError):
        return False
    return status != psutil.STATUS_ZOMBIE and (not isinstance(since, (int, float)) or born <= since + 2.0)
