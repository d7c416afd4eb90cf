"""One batch of NaN: a file that could not be read, a division by a zero deviation."""

from __future__ import annotations

from typing import Any

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class NanBatch(Fault):
    """All inputs of one batch become NaN."""

    code = "nan-batch"
    description = "all inputs of one batch are NaN"
    expected = Expected(
        findings=("non-finite-loss", "non-finite-input", "non-finite-gradient", "non-finite-weights"),
        causes=("data-non-finite",),
        survivable=True,
    )
    needs = ("float-inputs",)

    def batch(self, batch: Any, context: FaultContext) -> Any:
        """Fill them."""
        return context.change_inputs(batch, lambda inputs: inputs.fill_(float("nan")))
