"""Sends one run to one tracker while it lives: `python -m holdfast.integrations.beside FOLDER NAME`.

Started by the supervisor, which tells it by SIGTERM that the run is over and does not wait for it. If the supervisor was killed,
it stays as long as the training lives. What could not be sent is left to `holdfast sync`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

from holdfast.errors import CannotSend, HoldfastError
from holdfast.integrations.sending import Cursor, Sender, kind_of
from holdfast.probe.niceness import be_nice
from holdfast.probe.state import read_state
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble

_EVERY_SECONDS, _AT_MOST_SECONDS = 1.0, 30.0
_AFTER_END_SECONDS, _WHATEVER_HAPPENS_SECONDS = 30.0, 600


def main(arguments: list[str]) -> int:
    """Send until the run is over. Exits 0 if all was sent, 1 if something is left, 2 if it could not begin."""
    parent, over = os.getppid(), threading.Event()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def end(*_: object) -> None:
        over.set()
        signal.alarm(_WHATEVER_HAPPENS_SECONDS)  # a tracker that never answers keeps no process alive

    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the supervisor has blocked them until here
    be_nice()
    try:
        run = RunFolder.open(Path(arguments[0]))
        cursor = Cursor(run, arguments[1])
        with cursor.held() as ours:
            return _send(run, arguments[1], cursor, over, parent) if ours else 2
    except (IndexError, OSError, HoldfastError):
        return 2


def _send(run: RunFolder, name: str, cursor: Cursor, over: threading.Event, parent: int) -> int:
    trouble = Trouble(run.journal, severity="info")  # the run itself is well
    try:
        sender = Sender(run, kind_of(name), cursor)
    except HoldfastError as error:
        with contextlib.suppress(OSError):
            cursor.save(error=error.problem)
        trouble.step_back(f"sending to {name}", error)
        return 2
    seconds, give_up = _EVERY_SECONDS, float("inf")
    while True:
        is_over = over.is_set() or (os.getppid() != parent and not read_state(run).alive)
        try:
            sender.send()
            if is_over:
                sender.finish()
                sender.close()
                return 0
            seconds = _EVERY_SECONDS
        except Exception as error:  # noqa: BLE001 - a tracker can fail in many ways; none is the run's business
            trouble.step_back(f"sending to {name}", CannotSend(sender.failed(error), fix="holdfast sync"))
            seconds = min(_AT_MOST_SECONDS, seconds * 2)
        give_up = min(give_up, time.monotonic() + _AFTER_END_SECONDS) if is_over else give_up
        if time.monotonic() >= give_up:
            return 1
        if over.wait(seconds) and is_over:
            time.sleep(_EVERY_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
