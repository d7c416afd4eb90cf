"""Every sample is the same: one file read again and again, a field that was zeroed."""

from __future__ import annotations

from typing import Any

import torch

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class ConstantInputs(Fault):
    """All samples, also those that are held out, become the first one that was drawn."""

    code = "constant-inputs"
    description = "every sample reaches the model with the same values"
    expected = Expected(findings=("constant-predictions", "not-learning"), causes=("constant-input",))
    needs = ("float-inputs",)
    lasting = True
    from_start = True

    def __init__(self, strength: float | None = None) -> None:
        super().__init__(strength)
        self._first: dict[tuple[int, ...], torch.Tensor] = {}

    def batch(self, batch: Any, context: FaultContext) -> Any:
        """Labels stay as they are."""
        return context.change_inputs(batch, self._same)

    def held_out_batch(self, batch: Any, context: FaultContext) -> Any:
        """The mistake is in the data set: evaluations have it too."""
        return context.change_inputs(batch, self._same)

    def _same(self, inputs: torch.Tensor) -> None:
        if inputs.dim():
            inputs.copy_(self._first.setdefault(tuple(inputs.shape[1:]), inputs[0].clone()).expand_as(inputs))
