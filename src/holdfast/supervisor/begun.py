"""When the outside begins its work: not for a command that never trains, nor for a training that is over in a moment.

Loading what judges, samples and watches takes half a second of CPU time, which a short script would notice.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable

from holdfast.signals.pulse import STARTING, read_pulse
from holdfast.signals.run_folder import Recording, RunFolder

_EVERY_SECONDS = 0.2


def wait_for_training(
    run: RunFolder, stop: threading.Event, *, seconds: float, starting: bool = False, or_if: Callable[[], bool] = lambda: False
) -> bool:
    """Wait until a training has gone on for so many seconds, or something else holds; False if the run is over before.

    With `starting`, a process that has imported torch and has not made a step yet counts as well.
    """
    begun = math.inf
    while not or_if():
        if stop.is_set():
            return False
        begun = min(begun, time.monotonic()) if _still_starting(run, starting) else math.inf
        if time.monotonic() >= begun + seconds:
            return True
        stop.wait(_EVERY_SECONDS)
    return True


def trainings(run: RunFolder) -> list[Recording]:
    """The trainings of a run so far; none where its folder cannot be read."""
    with contextlib.suppress(OSError):
        return run.recordings()
    return []


def _still_starting(run: RunFolder, starting: bool) -> bool:
    pulses = map(read_pulse, trainings(run))
    return (starting and (run.path / STARTING).is_dir()) or any(pulse is None or pulse.phase != "ending" for pulse in pulses)
