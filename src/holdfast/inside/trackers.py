"""Trackers that fail or hold the training up are told; under `heal`, one that fails does not end the training.

    mlflow.log_metric(…)    takes longer than 5 s    ->  a finding
                            raises                   ->  a finding; under `heal` the script does not get the error, what it logs
                                                         in the next seconds is left out, then it is tried again

What a tracker is told is in the run folder as well, as far as Holdfast saw it. Starting a run is not covered: a script that
cannot reach its tracker at the beginning should say so.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from holdfast.inside.on_import import when_imported

if TYPE_CHECKING:
    from holdfast.inside.capture.checkpoint_news import CheckpointNews

CODE = "tracker-unreachable"
_TRACKERS = {  # module: class, and the methods that log something and whose result hardly anybody uses
    "mlflow.tracking.client": (
        "MlflowClient",
        *("log_metric", "log_param", "log_batch", "log_artifact", "log_artifacts", "log_dict", "log_figure", "log_image"),
        *("log_inputs", "log_table", "log_text", "set_tag"),
    ),
    "wandb.sdk.wandb_run": ("Run", "log", "log_artifact"),
}
_SHORTER = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}  # by default minutes, and 120 s
_QUICK = ("log_metric", "log_param", "log_batch", "set_tag", "log")  # what has a few bytes to send
_LONG = 5.0  # seconds
_AWAY = 30.0  # seconds in which a tracker that has failed is not tried again


class Trackers:
    """Stands between the script and its trackers."""

    def __init__(self, news: CheckpointNews, now: Callable[[], float] = time.monotonic) -> None:
        self._news, self._now = news, now
        self._until = 0.0
        self._left_out = 0
        self._told = False

    def install(self) -> None:
        """Wrap those that are imported, or will be. It stays: a module of somebody else's is not torn open again."""
        for name, value in _SHORTER.items() if self._news.heals(CODE) else ():
            os.environ.setdefault(name, value)
        when_imported(dict.fromkeys(_TRACKERS, self.wrap))

    def wrap(self, module: ModuleType) -> None:
        """Wrap the methods of the tracker in a module that was imported."""
        kind, *methods = _TRACKERS[module.__name__]
        owner = getattr(module, kind)
        for method in methods:
            original = getattr(owner, method, None)
            if original is not None:
                setattr(owner, method, self._kept_away(original, module.__name__.partition(".")[0]))

    def _kept_away(self, original: Callable[..., Any], tracker: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def logged(*args: Any, **kwargs: Any) -> Any:
            if self._now() < self._until:
                self._left_out += 1
                return None
            begun = self._now()
            try:
                result = original(*args, **kwargs)
            except (TypeError, ValueError, AttributeError):  # a mistake in the call
                raise
            except Exception as error:
                if not self._news.step():
                    raise
                self._tell(tracker, f"{type(error).__name__}: {error}"[:300], self._now() - begun)
                if not self._news.heals(CODE):
                    raise
                self._go_on(tracker)
                return None
            if (seconds := self._now() - begun) > _LONG and original.__name__ in _QUICK and self._news.step():
                self._tell(tracker, f"{original.__name__} held the training for {seconds:.1f} s", seconds)
            self._until = 0.0
            return result

        return logged

    def _tell(self, tracker: str, error: str, seconds: float) -> None:
        if not self._told:
            self._told = True
            self._news.finding(CODE, "warning", {"server": _address(tracker), "error": error, "seconds": round(seconds, 3)})

    def _go_on(self, tracker: str) -> None:
        self._until = self._now() + _AWAY
        if not self._left_out:
            detail = f"what goes to {tracker} is left out while it fails, and tried again every {_AWAY:g} s"
            self._news.action("go-on-without-tracker", CODE, detail)
        self._left_out += 1


def _address(tracker: str) -> str:
    """Where a tracker writes to, as far as it says so; a key in there is not shown."""
    asked = getattr(sys.modules.get(tracker), "get_tracking_uri", None)
    try:
        address = str(asked()) if asked is not None else tracker
    except Exception:  # noqa: BLE001 - only for words
        address = tracker
    return re.sub(r"//[^/@]*@", "//", address)
