"""Ctrl-C under a policy that acts, or in a run that saves: once saves after the step and stops, twice stops at once.

A script that handles SIGINT itself keeps its handler. With several ranks Ctrl-C is left alone: they would not stop at the same
step. Loader workers get the signal too and exit, so a training that waits for a batch stops where it is.
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
_STEP_TIMEOUT = 20.0  # seconds for the step to end; then the training stops at once


class Interrupt:
    """The SIGINT handler of this process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._scope: Scope | None = None
        self._requested, self._pid = False, 0
        self._timer: threading.Timer | None = None

    def install(self, scope: Scope) -> None:
        """Replace Python's SIGINT handler, in the main thread of a single-rank training."""
        if threading.current_thread() is not threading.main_thread() or world_size() > 1:
            return
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._scope, self._requested, self._pid = scope, False, os.getpid()
            signal.signal(signal.SIGINT, self._handle)

    def uninstall(self) -> None:
        """Restore Python's SIGINT handler."""
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(ValueError):  # not in the main thread
            if self._scope is not None and signal.getsignal(signal.SIGINT) == self._handle:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        self._scope = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._requested or not self._process.trainings or os.getpid() != self._pid:
            self.uninstall()
            signal.default_int_handler(number, frame)
        self._requested = True
        if _waits_for_batch(frame):
            self._stop(list(self._process.trainings)[-1])
        self._process.stopping = self._stop
        _print("saving a checkpoint after this step, then stopping; Ctrl-C again stops at once")
        self._timer = threading.Timer(_STEP_TIMEOUT, os.kill, (os.getpid(), signal.SIGINT))
        self._timer.daemon = True
        self._timer.start()

    def _stop(self, training: Training) -> None:
        self._process.stopping = None
        try:
            _print(self._save(training))
        except Exception as error:  # noqa: BLE001 - it stops all the same
            _print(f"no checkpoint was saved: {error}")
        self.uninstall()
        raise KeyboardInterrupt

    def _save(self, training: Training) -> str:
        from holdfast.inside.run_checkpoints import RunCheckpoints

        assert self._scope is not None
        checkpoints = RunCheckpoints(self._scope, self._process)
        response = checkpoints.save_on_request(training)()
        checkpoints.close()
        return f"saved {response['path']}" if response.get("ok") else f"no checkpoint was saved: {response.get('error')}"


def _waits_for_batch(frame: FrameType | None) -> bool:
    """Whether the thread is inside torch's DataLoader."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(_LOADER):
            return True
        frame = frame.f_back
    return False


def _print(message: str) -> None:
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        print(f"holdfast: {message}", file=sys.stderr, flush=True)
