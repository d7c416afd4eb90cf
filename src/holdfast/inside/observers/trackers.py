"""Detect an experiment tracker that stalls the training: after some seconds without a heartbeat the stack is inspected.

Nothing is wrapped. A tracker that raises ends the script like any other error; the supervisor names it, and under `heal`
restarts with trackers offline.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from holdfast.inside.observers.heartbeat import HEARTBEAT

if TYPE_CHECKING:
    from holdfast.inside.observers.checkpoint_log import CheckpointLog

CODE = "tracker-unreachable"
_TRACKERS = frozenset({"aim", "clearml", "comet_ml", "mlflow", "neptune", "swanlab", "trackio", "wandb"})
_STALLED_AFTER = 5.0  # seconds


class Trackers:
    """Checks every second, in the helper thread."""

    def __init__(self, checkpoint_log: CheckpointLog, now: Callable[[], float] = time.monotonic) -> None:
        self._log, self._now = checkpoint_log, now
        self._beats, self._since = -1, now()
        self._is_reported = False

    def look(self) -> None:
        """Report a tracker that the training thread has been inside of for too long; once."""
        if HEARTBEAT.beats != self._beats:
            self._beats, self._since = HEARTBEAT.beats, self._now()
        elif not self._is_reported and (seconds := self._now() - self._since) > _STALLED_AFTER:
            call = _tracker_call(sys._current_frames().get(HEARTBEAT.thread))
            if call is not None:
                self._is_reported = True
                tracker, function, waits_in = call
                error = f"{function} stalled the training for {seconds:.1f} s"
                evidence = {"server": tracker, "error": error, "waits_in": waits_in, "seconds": round(seconds, 3)}
                self._log.finding(CODE, "warning", evidence)


def _tracker_call(frame: FrameType | None) -> tuple[str, str, str] | None:
    """The tracker in a stack, the function of it that the script called, and the package that waits."""
    call: tuple[str, str, str] | None = None
    innermost: str | None = None
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        innermost = innermost or (None if package in sys.stdlib_module_names else package)
        if package in _TRACKERS:
            call = package, f"{package}.{frame.f_code.co_name}", innermost or package
        frame = frame.f_back
    return call
