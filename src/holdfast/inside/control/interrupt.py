"""Ctrl-C under a policy that acts, or in a run that saves: once saves at the end of the step and stops, twice stops at once.

A script that handles SIGINT itself keeps its own handler. Several ranks are left alone: they would not stop at the same step.
Loader workers get the keys, too, and end: who waits for a batch then would wait for nobody. There the step is over, and it
stops where it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING

from holdfast.inside.ranks import world_size

if TYPE_CHECKING:
    from holdfast.inside.process import Process
    from holdfast.inside.scope import Scope
    from holdfast.inside.training import Training

_LOADER = os.path.join("torch", "utils", "data", "dataloader.py")  # noqa: PTH118 - the end of a path
_WAIT = 20.0  # seconds for the step to end; then it stops at once


class Interrupt:
    """The handler of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._scope: Scope | None = None
        self._wanted, self._pid = False, 0
        self._timer: threading.Timer | None = None

    def listen(self, scope: Scope) -> None:
        """Take SIGINT from Python's own handler, in the main thread of a process that trains alone."""
        if self._scope is not None or threading.current_thread() is not threading.main_thread() or world_size() > 1:
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._scope, self._wanted, self._pid = scope, False, os.getpid()
            signal.signal(signal.SIGINT, self._pressed)

    def let_go(self) -> None:
        """Give SIGINT back to Python."""
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(ValueError):  # not in the main thread
            if self._scope is not None and signal.getsignal(signal.SIGINT) == self._pressed:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        self._scope = None

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        if self._wanted or not self._process.trainings or os.getpid() != self._pid:
            self.let_go()
            signal.default_int_handler(number, frame)
        self._wanted = True
        if _waits_for_a_batch(frame):
            self._stop(list(self._process.trainings)[-1])
        self._process.stopping = self._stop
        _say("a checkpoint is saved at the end of this step, then it stops; Ctrl-C again stops at once")
        self._timer = threading.Timer(_WAIT, os.kill, (os.getpid(), signal.SIGINT))
        self._timer.daemon = True
        self._timer.start()

    def _stop(self, training: Training) -> None:
        self._process.stopping = None
        try:
            _say(self._save(training))
        except Exception as error:  # noqa: BLE001 - it was asked to stop, and stops
            _say(f"no checkpoint was saved: {error}")
        self.let_go()
        raise KeyboardInterrupt

    def _save(self, training: Training) -> str:
        from holdfast.inside.control.save_now import SaveNow

        assert self._scope is not None
        emergency = SaveNow(training, self._scope, self._process)
        answer = emergency.save(None)()
        emergency.close()
        return f"saved {answer['path']}" if answer.get("ok") else f"no checkpoint was saved: {answer.get('error')}"


def _waits_for_a_batch(frame: FrameType | None) -> bool:
    """Whether it stands in a loader of torch."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(_LOADER):
            return True
        frame = frame.f_back
    return False


def _say(words: str) -> None:
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        print(f"holdfast: {words}", file=sys.stderr, flush=True)
