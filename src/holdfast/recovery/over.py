"""Whether a training is over: then nobody is left who could do what is decided for it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.probe.alive import lives
from holdfast.probe.rows import last_rows
from holdfast.signals.run_folder import Recording

_SIDE_BY_SIDE = 1.0  # seconds


def is_over(training: Sequence[Recording], run: Sequence[Recording]) -> bool:
    """Whether every rank of a training has ended; `run` are all recordings of its run."""
    part = max(recording.part for recording in training)
    later = [recording for recording in run if recording.part > part]
    return all(_has_ended(recording, later) for recording in training)


def _has_ended(recording: Recording, later: Sequence[Recording]) -> bool:
    """Its process is gone, or has begun the next training and continues with that one alone.

    One that cannot be seen from here has ended when there is a next.
    """
    info = recording.info()
    alive = lives(info) if isinstance(info.get("pid"), int) else None
    if alive is None:
        return bool(later)
    begun = [other.info().get("started", 0.0) for other in later if other.info().get("pid") == info["pid"]]
    return not alive or (bool(begun) and not _has_stepped_since(recording, max(begun)))


def _has_stepped_since(recording: Recording, when: float) -> bool:
    """Whether a training continues although its process has begun another: they run side by side, in threads."""
    times = last_rows(recording.path, "steps", ("time",), 1)["time"]
    return len(times) > 0 and float(times[-1]) > when + _SIDE_BY_SIDE
