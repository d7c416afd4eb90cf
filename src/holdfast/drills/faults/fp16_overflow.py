"""A batch is too large for half precision: harmless in single precision, beyond 65504 where a layer computes in float16."""

from __future__ import annotations

from typing import Any

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class HalfOverflow(Fault):
    """Multiply the inputs of one batch by a million."""

    code = "fp16-overflow"
    description = "one batch is so large that layers in float16 overflow"
    expected = Expected(
        findings=("non-finite-loss", "non-finite-gradient", "non-finite-weights", "scaler-collapse"),
        causes=("overflow",),
        survivable=True,
    )
    needs = ("float-inputs", "half")
    strength = 1e6

    def batch(self, batch: Any, context: FaultContext) -> Any:
        """Multiply them."""
        return context.change_inputs(batch, lambda inputs: inputs.mul_(self.strong))
