"""Evaluations skip the normalisation that training has: the transform of one of two loaders was forgotten."""

from __future__ import annotations

from typing import Any

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext

_DEVIATION, _MEAN = 57.0, 117.0  # of pixels from 0 to 255, about


class NormalisationDropped(Fault):
    """Held-out inputs come as raw pixels would: as if they had not been brought to a mean of 0 and a deviation of 1."""

    code = "normalisation-dropped"
    description = "training inputs are normalised, held-out inputs are not"
    expected = Expected(findings=("preprocessing-mismatch",), causes=("normalisation-mismatch",))
    needs = ("float-inputs", "evaluation")
    lasting = True
    from_start = True

    def held_out_batch(self, batch: Any, context: FaultContext) -> Any:
        """Undo the normalisation."""
        return context.change_inputs(batch, lambda inputs: inputs.mul_(self.strong * _DEVIATION).add_(self.strong * _MEAN))
