"""A tracker that holds the training up: once nothing was seen of the training for some seconds, its stack is looked at.

Nothing stands between the script and its tracker. One that raises ends the script like any other error; the supervisor names it,
and restarts under `heal` with trackers offline.
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
_LONG = 5.0  # seconds


class Trackers:
    """Looks every second, from the helper thread."""

    def __init__(self, checkpoint_log: CheckpointLog, now: Callable[[], float] = time.monotonic) -> None:
        self._news, self._now = checkpoint_log, now
        self._beats, self._since = -1, now()
        self._told = False

    def look(self) -> None:
        """See whether the training stands still, and in whose code."""
        if HEARTBEAT.beats != self._beats:
            self._beats, self._since = HEARTBEAT.beats, self._now()
        elif not self._told and (seconds := self._now() - self._since) > _LONG:
            found = _tracker_in(sys._current_frames().get(HEARTBEAT.thread))
            if found is not None:
                self._told = True
                tracker, call, inside = found
                error = f"{call} held the training for {seconds:.1f} s"
                self._news.finding(
                    CODE, "warning", {"server": tracker, "error": error, "waits_in": inside, "seconds": round(seconds, 3)}
                )


def _tracker_in(frame: FrameType | None) -> tuple[str, str, str] | None:
    """The tracker that a stack stands in, the function of it that the script called, and the package that waits."""
    found: tuple[str, str, str] | None = None
    innermost: str | None = None
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        innermost = innermost or (None if package in sys.stdlib_module_names else package)
        if package in _TRACKERS:
            found = package, f"{package}.{frame.f_code.co_name}", innermost or package
        frame = frame.f_back
    return found
