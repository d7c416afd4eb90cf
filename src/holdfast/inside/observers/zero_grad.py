"""`gradients-not-zeroed`: detect gradients that are never zeroed. Decided in the first steps, free afterwards.

Each backward pass adds to a gradient in place, and torch counts in-place writes in `_version`. If the only writes between two
updates are those of backward passes and clipping, nobody has zeroed or replaced the gradient.
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
        self._num_kept = 0
        self._last: tuple[int, int, int, int] | None = None  # parameter's index, gradient's id and version, backward passes

    def before(self, parameters: Sequence[torch.Tensor], backwards: int, *, clipped: bool, scaled: bool) -> None:
        """Check the gradient before an update; `backwards` counts all passes so far."""
        if self._last is None:
            return
        index, gradient_id, version, last_backwards = self._last
        gradient = parameters[index].grad if index < len(parameters) else None
        passes = backwards - last_backwards
        self._num_kept += 1
        if (
            scaled
            or gradient is None
            or id(gradient) != gradient_id
            or passes < 1
            or gradient._version - version != passes + clipped
        ):
            self.is_decided = True

    def after(self, parameters: Sequence[torch.Tensor], backwards: int) -> bool:
        """Remember the gradient after an update; whether it is certain by now that gradients are never zeroed."""
        with_gradient = ((index, parameter.grad) for index, parameter in enumerate(parameters) if parameter.grad is not None)
        index, gradient = next(with_gradient, (0, None))
        if gradient is None:
            self.is_decided = True
            return False
        self._last = (index, id(gradient), gradient._version, backwards)
        if self.is_decided or self._num_kept < _UPDATES:
            return False
        self.is_decided = True
        return bool(gradient.any())  # an optimizer may zero gradients in its step


def report_not_zeroed(recorder: Recorder, step: int) -> None:
    """Write the finding."""
    evidence = {"onset": 0, "updates": step}
    with contextlib.suppress(OSError):
        recorder.run.journal.write(
            "finding", rank=recorder.recording.rank, code=CODE, severity="warning", step=step, evidence=evidence
        )
