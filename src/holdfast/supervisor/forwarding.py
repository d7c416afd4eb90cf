"""Signals that reach the supervisor are the command's: pass them on, unless the terminal already gave them to both.

Ctrl-C goes to the whole foreground process group, the command included; `kill PID` reaches the supervisor alone. The
kernel says which it was, to whoever waits for the signal instead of handling it. So the signals are blocked in every
thread and one thread waits for them. Where that is not possible (macOS, or threads that already run), plain handlers
take SIGINT and SIGQUIT for the terminal's while we are in its foreground.

A command starts with hang-ups ignored, as under `nohup`: a terminal that goes away does not end a training. One that has a
handler for them gets them.

A signal sent to the whole group with `kill -- -PGID` reaches the command twice: nothing tells it from `kill PID`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.supervisor.preemption import Preemption

FORWARDED = frozenset(
    {
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGQUIT,
        signal.SIGCONT,
    }
)
_WAITED = FORWARDED | {signal.SIGWINCH}
_TO_END = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGQUIT})
_FROM_KEYBOARD = frozenset({signal.SIGINT, signal.SIGQUIT})


class Forwarding:
    """Start it before the command, and name the command with `to`; signals that come before that wait.

    `hurry` is set by a signal to end that comes after the command has ended: whoever sent it wants us gone. A terminal that goes
    away then does not: the command may be about to be started again.
    """

    def __init__(self, on_resize: Callable[[], bool], *, preemption: Preemption | None = None, apart: bool = False) -> None:
        """`preemption` takes its signals first; with `apart` the command is in a process group of its own."""
        self._preemption, self._apart = preemption, apart
        self.hurry = threading.Event()
        self._on_resize = on_resize
        self.requested: signal.Signals | None = None  # somebody wants the command to end
        self._pid: int | None = None
        self._listening = False
        self._gone = False
        self._changing = threading.RLock()  # a handler may interrupt who holds it
        self._missed: signal.Signals | None = None  # it came while there was no command
        self.child_mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self.waiting = sys.platform == "linux" and _single_threaded()
        if self.waiting:
            signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
        else:
            self._handle_plainly()

    def to(self, pid: int) -> None:
        """The command has started, for the first time or again."""
        with self._changing:
            self._pid, self._gone, missed = pid, False, self._missed
            self._missed = None
        if missed is not None:
            self._send(missed)
        if self.waiting and not self._listening:
            self._listening = True
            threading.Thread(target=self._work, name="holdfast-signals", daemon=True).start()

    def command_ended(self) -> None:
        """There is nobody to pass signals to any more, and its number may soon be another process's."""
        self._gone = True

    def _work(self) -> None:
        while sys.platform == "linux":
            info = signal.sigwaitinfo(_WAITED)
            self._take(signal.Signals(info.si_signo), from_kernel=info.si_code > 0)

    def _take(self, number: signal.Signals, *, from_kernel: bool) -> None:
        if self._preemption is not None and not self._gone and self._preemption.take(number):
            return
        if number in _TO_END:
            self.requested = number
        if number == signal.SIGWINCH:
            if self._on_resize():  # the terminal told the command before its own terminal had the new size
                self._send(number)
        elif not from_kernel or self._apart or (number == signal.SIGHUP and os.getsid(0) == os.getpid()):
            self._send(number)  # a hang-up is told to the leader of the session alone
        elif self._gone:
            self._end_soon(number)

    def _end_soon(self, number: signal.Signals) -> None:
        if number in _TO_END:
            self._missed = number
            self.hurry.set()

    def _send(self, number: signal.Signals) -> None:
        with self._changing:
            if self._gone:
                self._end_soon(number)
                return
        if self._pid is not None:
            with contextlib.suppress(OSError):
                os.kill(self._pid, number)

    def _handle_plainly(self) -> None:
        def handle(received: int, _frame: object) -> None:
            number = signal.Signals(received)
            self._take(number, from_kernel=number in _FROM_KEYBOARD and _in_foreground())

        for number in _WAITED:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, handle)


def _single_threaded() -> bool:
    try:
        return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208
    except OSError:
        return False


def _in_foreground() -> bool:
    with contextlib.suppress(OSError), Path("/dev/tty").open("rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False
