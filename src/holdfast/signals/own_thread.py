"""A thread of Holdfast in someone else's process, made so that the script does not meet it.

No signal comes to it: one that the script has blocked, to wait for it with `sigwait`, would be delivered here, and its default
action would end the process. And it holds nobody up: a script that joins every other thread at its end waits for none of these.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

# What a thread does itself: blocked, it would end the process without a word.
_OWN_FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"}


class OwnThread(threading.Thread):
    """A daemon. `threading.enumerate` leaves it out: see inside/taps/hooks.py."""

    def __init__(self, target: Callable[..., Any], *args: Any, name: str) -> None:
        super().__init__(target=target, args=args, name=name, daemon=True)

    def start(self) -> None:
        """Start it with all signals blocked; it inherits that from the thread that starts it."""
        if not hasattr(signal, "pthread_sigmask"):
            super().start()
            return
        before = signal.pthread_sigmask(
            signal.SIG_BLOCK, [one for one in signal.valid_signals() if _name(one) not in _OWN_FAULTS]
        )
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def join(self, timeout: float | None = None) -> None:
        """Do not wait: only Holdfast knows when it ends."""

    def wait(self, seconds: float) -> None:
        """Wait until it has ended, at most so long."""
        super().join(seconds)


def others(threads: list[threading.Thread]) -> list[threading.Thread]:
    """Those that are not Holdfast's."""
    return [thread for thread in threads if not isinstance(thread, OwnThread)]


def _name(number: int) -> str:
    return number.name if isinstance(number, signal.Signals) else ""
