"""A wrong learning rate at every update, whatever a schedule sets and whatever optimizer state is restored."""

from __future__ import annotations

from holdfast.drills.injection.context import FaultContext


class LearningRateOverride:
    """Multiplies the learning rate of every group just before each update.

    A schedule may reckon its next rate from the one it finds, or from its own beginning: whichever is nearer was meant.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._meant: dict[int, float] = {}  # by the group's number

    def put_on(self, context: FaultContext) -> None:
        """Called when the gradients are there. The optimizer is known from its first step on."""
        if context.step == 0:
            return
        for number, group in enumerate(context.optimizer.param_groups):
            current, last_set = float(group["lr"]), self._meant.get(number)
            ours = last_set is not None and _far(current, last_set * self._factor) < _far(current, last_set)
            meant = self._meant[number] = current / self._factor if ours else current
            group["lr"] = meant * self._factor


def _far(wanted: float, other: float) -> float:
    """How many times one is the other, either way."""
    return max(wanted, other) / max(min(wanted, other), 1e-300)
