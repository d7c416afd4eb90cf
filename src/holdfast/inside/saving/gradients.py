"""Gradients that wait for their update: a training that is saved between two `backward` calls of one step goes on with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

Optimizer = torch.optim.Optimizer
Gradients = list[dict[int, Any]]


def read_gradients(optimizers: Iterable[Optimizer]) -> Gradients:
    """The gradients of each optimizer's parameters, by number through its groups; not copied."""
    return [{number: p.grad for number, p in enumerate(_parameters(one)) if p.grad is not None} for one in optimizers]


def put_gradients_back(optimizers: Iterable[Optimizer], saved: Gradients) -> None:
    """Give the parameters their gradients; the others have none."""
    for optimizer, gradients in zip(optimizers, saved, strict=False):
        for number, parameter in enumerate(_parameters(optimizer)):
            gradient = gradients.get(number)
            parameter.grad = None if gradient is None else gradient.to(device=parameter.device, dtype=parameter.dtype)


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
