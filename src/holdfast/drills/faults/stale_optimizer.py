"""The optimizer holds parameters that the model no longer uses: its head was replaced after the optimizer was made."""

from __future__ import annotations

from torch import nn

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class StaleOptimizer(Fault):
    """Give the last layer new parameters with the same values, of which the optimizer does not know."""

    code = "stale-optimizer"
    description = "the optimizer holds outdated parameters of the last layer"
    expected = Expected(
        findings=("parameters-not-trained", "not-learning"),
        causes=("optimizer-holds-other-parameters",),
    )
    needs = ("layers",)
    lasting = True
    from_start = True

    def __init__(self, strength: float | None = None) -> None:
        super().__init__(strength)
        self._done = False

    def update(self, context: FaultContext) -> None:
        """After the first update, once the model is known."""
        if self._done:
            return
        self._done = True
        layer = context.layers()[-1][1]
        for name, parameter in list(layer.named_parameters(recurse=False)):
            setattr(layer, name, nn.Parameter(parameter.detach().clone()))
