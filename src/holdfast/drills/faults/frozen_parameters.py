"""A part of the model never learns: it runs under `no_grad`, or its output is detached."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.context import FaultContext

_SHARE = 0.1  # of the parameters must lose their gradients


class FrozenParameters(Fault):
    """Cut the graph behind the layer in the middle: neither it nor what lies before it gets a gradient."""

    code = "frozen-parameters"
    description = "the first half of the model gets no gradients"
    expected = Expected(findings=("parameters-not-trained",), causes=("frozen-by-mistake", "parameters-without-gradients"))
    needs = ("layers",)
    lasting = True
    from_start = True

    def __init__(self, strength: float | None = None) -> None:
        super().__init__(strength)
        self._cut: Any = None
        self._checked = False  # that some parameters get no gradient now

    def update(self, context: FaultContext) -> None:
        """After the first update, once the model is known."""
        if self._cut is not None:
            parameters = list(context.model.parameters()) if not self._checked else []
            if sum(not _gets_gradient(parameter) for parameter in parameters) < _SHARE * len(parameters):
                raise CannotHappen("the layer in the middle keeps hardly any gradient from the others")
            self._checked = True
            return
        layers = context.layers(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding, nn.RNNBase)
        if len(layers) < 2:
            raise CannotHappen("the model has one layer only")
        self._cut = layers[(len(layers) - 1) // 2][1].register_forward_hook(_detached)


def _gets_gradient(parameter: nn.Parameter) -> bool:
    return not parameter.requires_grad or (parameter.grad is not None and bool(parameter.grad.any()))


def _detached(_layer: nn.Module, _inputs: Any, output: Any) -> Any:
    if isinstance(output, tuple):
        return tuple(_detached(_layer, _inputs, part) for part in output)
    return output.detach() if isinstance(output, torch.Tensor) else output
