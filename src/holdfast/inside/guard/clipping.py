"""Clip a gradient that is far larger than any before it, to the size of the largest ordinary one.

The limit is a multiple of the largest norm seen, which is forgotten slowly: nearly converged models and tiny batches have
norms that jump a thousandfold over their median all the time, but hardly ever over their own largest.
"""

from __future__ import annotations

import math

_WARM_UP = 50  # norms, before anything is called unusual
_FORGETS = 0.999  # what is left of the largest norm after a step: half of it after 700
_TIMES = 8.0  # over the largest


class NormHistory:
    """The norms of a training's gradients so far."""

    def __init__(self, *, times: float = _TIMES, warm_up: int = _WARM_UP) -> None:
        self._times, self._warm_up = times, warm_up
        self.largest, self.seen = 0.0, 0

    def limit(self) -> float:
        """The largest norm that an update may have now."""
        return self._times * self.largest if self.seen >= self._warm_up and self.largest > 0.0 else math.inf

    def add(self, norm: float) -> None:
        """Take in the norm of an update that was made."""
        if math.isfinite(norm):
            self.largest = max(norm, self.largest * _FORGETS)
            self.seen += 1

    def forget(self) -> None:
        """Begin again, after a roll-back, or with other parameters."""
        self.largest, self.seen = 0.0, 0
