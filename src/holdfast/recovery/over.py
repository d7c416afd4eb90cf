"""Whether a training is over: then nobody is left who could do what is decided for it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.probe.alive import lives
from holdfast.signals.run_folder import Recording


def is_over(training: Sequence[Recording], run: Sequence[Recording]) -> bool:
    """Whether every rank of a training has ended; `run` are all recordings of its run."""
    later = [one for one in run if one.part > max(own.part for own in training)]
    return all(_has_ended(one, later) for one in training)


def _has_ended(one: Recording, later: Sequence[Recording]) -> bool:
    """Its process is gone, or has begun the next training. One that cannot be seen from here has ended when there is a next."""
    info = one.info()
    alive = lives(info) if isinstance(info.get("pid"), int) else None
    if alive is None:
        return bool(later)
    return not alive or any(other.info().get("pid") == info["pid"] for other in later)
