"""`gradients-not-zeroed`: gradients of one update are still there in the next. Decided in the first steps; then it costs nothing.

Each backward pass adds to a gradient in place, and torch counts such writes. Where the writes between two updates are those of
the backward passes, and of the clipping, nobody has zeroed the gradient or replaced it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from holdfast.signals.recorder import Recorder

CODE = "gradients-not-zeroed"
_UPDATES = 16  # in a row


class ZeroGradCheck:
    """Watches one gradient from update to update."""

    def __init__(self) -> None:
        self.is_decided = False
        self._kept = 0
        self._last: tuple[int, int, int, int] | None = None  # its parameter, itself, its writes, backward passes so far

    def before(self, parameters: Sequence[torch.Tensor], backwards: int, *, clipped: bool, scaled: bool) -> None:
        """An update comes next; `backwards` counts all passes so far."""
        if self._last is None:
            return
        place, identity, writes, passes = self._last
        gradient = parameters[place].grad if place < len(parameters) else None
        since = backwards - passes
        self._kept += 1
        if scaled or gradient is None or id(gradient) != identity or since < 1 or gradient._version - writes != since + clipped:
            self.is_decided = True

    def after(self, parameters: Sequence[torch.Tensor], backwards: int) -> bool:
        """The update is over; whether it is certain by now that gradients are never zeroed."""
        found = next(((place, one.grad) for place, one in enumerate(parameters) if one.grad is not None), None)
        if found is None:
            self.is_decided = True
            return False
        place, gradient = found
        self._last = (place, id(gradient), gradient._version, backwards)
        if self.is_decided or self._kept < _UPDATES:
            return False
        self.is_decided = True
        return bool(gradient.any())  # an optimizer may zero them itself, in its step


def report_not_zeroed(recorder: Recorder, step: int) -> None:
    """Write the finding."""
    evidence = {"onset": 0, "updates": step}
    with contextlib.suppress(OSError):
        recorder.run.journal.write(
            "finding", rank=recorder.recording.rank, code=CODE, severity="warning", step=step, evidence=evidence
        )
