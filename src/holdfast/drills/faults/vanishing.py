"""All weights shrink at once: a weight decay with a wrong sign, an average that took in zeros. Signals and gradients vanish."""

from __future__ import annotations

import torch

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class Vanishing(Fault):
    """Scale down all parameters that are matrices: weights, not biases and not what normalisation layers have."""

    code = "vanishing"
    description = "the weights of all layers are divided by 100"
    expected = Expected(
        findings=(
            *("loss-divergence", "gradient-vanishing", "metric-collapse", "not-learning"),
            *("non-finite-gradient", "non-finite-weights"),  # of a loss that divides by what has vanished
        ),
        causes=("weights-overwritten", "bad-initialisation"),
        survivable=True,
        by_loss=True,
    )
    needs = ("weights",)
    strength = 0.01

    def update(self, context: FaultContext) -> None:
        """Between two steps, past the optimizer."""
        with torch.no_grad():
            for parameter in context.model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(self.strong)
