"""Gradients explode on their way back through time: recurrent weights that have grown too large."""

from __future__ import annotations

import torch
from torch import nn

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class RecurrentExplosion(Fault):
    """Multiply the recurrent weights."""

    code = "recurrent-explosion"
    description = "the recurrent weights are multiplied by 5"
    expected = Expected(
        findings=("gradient-explosion", "loss-divergence", "metric-collapse", "non-finite-loss", "non-finite-gradient"),
        causes=("no-clipping", "learning-rate-too-high", "weights-overwritten"),
        survivable=True,
    )
    needs = ("recurrent",)
    strength = 5.0

    def update(self, context: FaultContext) -> None:
        """Between two steps, past the optimizer."""
        with torch.no_grad():
            for _, layer in context.layers(nn.RNNBase, nn.RNNCellBase):
                for name, weight in layer.named_parameters():
                    if "weight_hh" in name:
                        weight.mul_(self.strong)
