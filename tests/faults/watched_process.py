"""The process of the tests, watched as a script's is, and a small training in it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from watched_training import Recorded

from holdfast.inside.arm import arm_from_environment, armed
from holdfast.signals.run_folder import RunFolder


class Watching:
    """The whole process is watched; reading ends it."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        arm_from_environment()

    def close(self) -> Recorded:
        armed().close_all()
        return Recorded(self._run)


def small(**kind: Any) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8, **kind), nn.Tanh(), nn.Linear(8, 1, **kind))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 6,
    *,
    loss_of: Callable[[torch.Tensor], torch.Tensor] = lambda outputs: outputs.square().mean(),
    after_each: Callable[[], object] = lambda: None,
    dtype: torch.dtype = torch.float32,
) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(torch.randn(5, 4, dtype=dtype)))
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        after_each()
    return losses


def sgd(model: nn.Module, **how: Any) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), **{"lr": 1e-2, **how})


def step_and_undo(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    before = copy.deepcopy(model.state_dict())
    optimizer.step()
    model.load_state_dict(before)
