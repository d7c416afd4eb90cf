"""One number of one batch is infinite: a logarithm of zero in the preparation, a broken sensor."""

from __future__ import annotations

from typing import Any

import torch

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class InfPixel(Fault):
    """A single number becomes Inf."""

    code = "inf-pixel"
    description = "a single value of one batch is infinite"
    expected = Expected(
        findings=("non-finite-loss", "non-finite-input", "non-finite-gradient", "non-finite-weights"),
        causes=("data-non-finite",),
        survivable=True,
    )
    needs = ("float-inputs",)

    def batch(self, batch: Any, context: FaultContext) -> Any:
        """Change one number, somewhere in the middle of a sample."""

        def corrupt(inputs: torch.Tensor) -> None:
            inputs.view(-1)[inputs.numel() // 2 + context.random.randrange(max(1, inputs.shape[-1] // 2))] = float("inf")

        return context.change_inputs(batch, corrupt)
