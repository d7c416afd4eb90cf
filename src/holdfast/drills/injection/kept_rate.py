"""A learning rate that is wrong at every update, whatever a schedule sets and whatever state the optimizer is put back into."""

from __future__ import annotations

from holdfast.drills.injection.scene import Scene


class KeptRate:
    """Multiplies the rate of every group just before each update.

    A schedule may reckon its next rate from the one it finds, or from its own beginning: whichever is nearer was meant.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._meant: dict[int, float] = {}  # by the group's number

    def put_on(self, scene: Scene) -> None:
        """Called when the gradients are there. The optimizer is known from its first step on."""
        if scene.step == 0:
            return
        for number, group in enumerate(scene.optimizer.param_groups):
            found, known = float(group["lr"]), self._meant.get(number)
            ours = known is not None and _far(found, known * self._factor) < _far(found, known)
            meant = self._meant[number] = found / self._factor if ours else found
            group["lr"] = meant * self._factor


def _far(one: float, other: float) -> float:
    """How many times one is the other, either way."""
    return max(one, other) / max(min(one, other), 1e-300)
