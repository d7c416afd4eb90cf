"""What a training here keeps about itself, so that two runs can be compared, and a run with what was recorded of it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Story:
    """Facts of a training, step by step; saved with the final weights and the state of every random generator."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        self.facts: dict[str, Any] = {}

    def step(self, **facts: Any) -> None:
        """Keep one value of each name for a step that was made."""
        for name, value in facts.items():
            self.facts.setdefault(name, []).append(float(value.detach()) if isinstance(value, torch.Tensor) else value)

    def save(self, *models: nn.Module, **facts: Any) -> None:
        """Write everything to the path that the script was given."""
        weights = [{name: tensor.detach().clone() for name, tensor in model.state_dict().items()} for model in models]
        rng = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}
        torch.save({**self.facts, **facts, "weights": weights, "rng": rng}, sys.argv[1])


def norm_of(parameters: Iterable[torch.Tensor]) -> float:
    """Norm of all gradients together, computed one by one and in double precision."""
    squares = 0.0
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
            squares += float(gradient.abs().double().square().sum())
    return float(squares**0.5)


def digits(count: int = 70, seed: int = 1) -> TensorDataset:
    """A small set of pictures in ten classes; `count` is no multiple of the usual batch sizes on purpose."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 1, 8, 8, generator=generator)
    return TensorDataset(inputs, inputs.flatten(1)[:, :10].argmax(1))


def classifier(width: int = 24) -> nn.Sequential:
    """A small network with what real ones have: convolution, batch norm, dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, width),
        nn.Dropout(0.1),
        nn.Linear(width, 10),
    )
