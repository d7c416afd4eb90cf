"""One batch of numbers that are far too large: a sample that was not normalised, an outlier. The next one is normal."""

from __future__ import annotations

from typing import Any

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class LossSpike(Fault):
    """Multiply the inputs of one batch."""

    code = "loss-spike"
    description = "the inputs of one batch are negated and 5 times as large"
    expected = Expected(
        findings=("loss-spike", "gradient-explosion", "loss-divergence"),
        causes=("bad-batch", "outliers-in-data"),
        survivable=True,
        by_loss=True,
        info_is_enough=True,
    )
    needs = ("float-inputs",)
    strength = -5.0  # a layer of normalisation takes the size away, not the sign

    def batch(self, batch: Any, context: FaultContext) -> Any:
        """Multiply them."""
        return context.change_inputs(batch, lambda inputs: inputs.mul_(self.strong))
