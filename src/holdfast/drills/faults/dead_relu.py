"""The units of a layer die: a large step has pushed their biases so far down that ReLU gives zero for every input."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

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
        layer, relu = _before_relu(context)
        with torch.no_grad():
            layer.bias.fill_(-self.strong * max(1.0, float(layer.bias.abs().max())))
        _Feeding(layer, relu, context.withdraw)


class _Feeding:
    """Looks, at the layer's next two calls, whether the ReLU is given what the layer gives: it may only be named after it."""

    def __init__(self, layer: nn.Module, relu: nn.Module, withdraw: Callable[[str], None]) -> None:
        self._output: torch.Tensor | None = None
        self._withdraw = withdraw
        self._hooks = [layer.register_forward_hook(self._layer_called), relu.register_forward_hook(self._relu_called)]

    def _layer_called(self, _layer: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        if self._output is not None:
            self._end()
            self._withdraw("the layer that stands before the ReLU does not feed it")
        self._output = output.detach()

    def _relu_called(self, _relu: nn.Module, inputs: tuple[torch.Tensor, ...], _output: torch.Tensor) -> None:
        if self._output is not None and inputs and inputs[0].data_ptr() == self._output.data_ptr():
            self._end()

    def _end(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _before_relu(context: FaultContext) -> tuple[Any, nn.Module]:
    """The last layer with a bias that stands before a ReLU."""
    modules = [module for module in context.model.modules() if not list(module.children())]
    for layer, following in reversed(list(pairwise(modules))):
        if isinstance(following, nn.ReLU) and isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d) and layer.bias is not None:
            return layer, following
    raise CannotHappen("no layer with a bias is directly followed by a ReLU")
