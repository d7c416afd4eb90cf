"""What a rank says about itself, so that ranks which are set up differently can be told: versions, seeds, data order, clock."""

from __future__ import annotations

import contextlib
import json
import platform
import time
from typing import Any

import torch

from holdfast.inside.observers.loader import Loader
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import replace_text

NAME = "setup.json"
_CLOCK_SET = 10.0  # seconds: somebody has set the clock


class RankSetup:
    """Written beside the rank's tables with its first steps, and again when something of it changes."""

    def __init__(self, recorder: Recorder, loader: Loader) -> None:
        self._recorder, self._loader = recorder, loader
        self._written: dict[str, Any] = {}
        self._ahead = 0.0  # of the clock before the time since the start of the machine

    def look(self) -> None:
        """Called about once a second, in the helper thread."""
        now: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()}
        now["seed"] = torch.initial_seed()
        if (iterator := self._loader.drawn_from()[0]) is not None:
            now["sampler"] = _sampler_of(iterator)
        elif "sampler" in self._written:  # between two epochs
            now["sampler"] = self._written["sampler"]
        ahead = time.time() - time.monotonic()
        if now == self._written and abs(ahead - self._ahead) < _CLOCK_SET:
            return
        path = self._recorder.recording.path / NAME
        with contextlib.suppress(OSError):  # the clock beside the time that the file system gives the file
            replace_text(path, json.dumps({**now, "clock": time.time()}) + "\n")
            self._written, self._ahead = now, ahead


def _sampler_of(iterator: Any) -> list[Any] | None:
    """How a distributed sampler deals out the data; None for any other."""
    batches = getattr(iterator, "_index_sampler", None)
    sampler: Any = getattr(batches, "sampler", batches)
    if not all(hasattr(sampler, name) for name in ("num_replicas", "seed", "shuffle")):
        return None
    return [type(sampler).__name__, sampler.seed, sampler.shuffle, sampler.num_replicas]
