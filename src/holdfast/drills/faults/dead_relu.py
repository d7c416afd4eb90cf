"""The units of a layer die: a large step has pushed their biases so far down that ReLU gives zero for every input."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.context import FaultContext


class DeadRelu(Fault):
    """Set the biases of a layer before a ReLU far below zero."""

    code = "dead-relu"
    description = "the biases of a layer before a ReLU become -10 and lower"
    expected = Expected(
        findings=("dead-units", "loss-divergence", "metric-collapse", "not-learning"),
        causes=("dying-relu", "weights-overwritten"),
        survivable=True,
    )
    needs = ("relu",)
    strength = 10.0

    def update(self, context: FaultContext) -> None:
        """Between two steps, past the optimizer."""
        with torch.no_grad():
            bias = _before_relu(context)
            bias.fill_(-self.strong * max(1.0, float(bias.abs().max())))


def _before_relu(context: FaultContext) -> torch.Tensor:
    """The biases of the last layer that a ReLU follows directly."""
    modules = [module for module in context.model.modules() if not list(module.children())]
    for layer, following in reversed(list(pairwise(modules))):
        if isinstance(following, nn.ReLU) and isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d) and layer.bias is not None:
            return layer.bias
    raise CannotHappen("no layer with a bias is directly followed by a ReLU")
