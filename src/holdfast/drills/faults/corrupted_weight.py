"""A bit of a weight flips in memory: a cosmic ray, a card that is going to fail."""

from __future__ import annotations

import torch

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.context import FaultContext

_WHOLE = {8: torch.int64, 4: torch.int32, 2: torch.int16}


class CorruptedWeight(Fault):
    """Flip the highest bit of an exponent: a weight of 0.1 becomes 3e37. A strength of 2 flips the bit below it, and so on."""

    code = "corrupted-weight"
    description = "one bit of a weight's exponent flips"
    expected = Expected(
        findings=(
            *("non-finite-weights", "non-finite-loss", "non-finite-gradient", "loss-divergence", "gradient-explosion"),
            "metric-collapse",
        ),
        causes=("weights-damaged", "weights-overwritten"),
        survivable=True,
    )
    needs = ("weights",)

    def update(self, context: FaultContext) -> None:
        """Between two steps, past the optimizer; in the layer in the middle, where no input is always zero."""
        weights = context.weights()
        weight = weights[len(weights) // 2].data
        small = torch.where(weight.abs() < 1, weight.abs(), 0).view(-1)  # of larger ones that bit is set already
        if not weight.is_floating_point() or not bool(small.any()):
            raise CannotHappen("the layer has no small floating-point weights")
        bits = weight.view(_WHOLE[weight.itemsize]).view(-1)
        bits[int(small.argmax())] ^= 1 << (8 * weight.itemsize - 1 - int(self.strong))
