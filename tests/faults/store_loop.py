"""A small training whose every part a checkpoint has to hold, for the tests of the store."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Net(nn.Module):
    """Tied weights, BatchNorm, dropout, a frozen part, a mask that is infinite on purpose and is in no state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second, self.tied = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.tied.weight = self.second.weight
        self.frozen, self.last, self.drop = nn.Linear(8, 8).requires_grad_(False), nn.Linear(8, 3), nn.Dropout(0.2)
        self.register_buffer("mask", torch.full((2,), -torch.inf), persistent=False)
        self.register_buffer("bias_mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.tied(self.frozen(self.second(self.norm(self.first(x)).relu())).relu())))


class Shadow:
    """An average of somebody's own kind."""

    def __init__(self, model: nn.Module) -> None:
        self.updates, self.values = 0, [p.detach().clone() for p in model.parameters()]

    def update(self, model: nn.Module) -> None:
        self.updates += 1
        for value, parameter in zip(self.values, model.parameters(), strict=True):
            value.lerp_(parameter.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates, self.values = state["updates"], list(state["values"])


class Batches:
    """A loader that knows where it is."""

    def __init__(self) -> None:
        self.at, self.seen = 0, torch.zeros(3)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.seen = state["at"], state["seen"]


class Loop:
    """A small real training with everything that people have."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = Net()
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 1e-2, total_steps=500)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=7)
        self.ema = [AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9)), Shadow(self.model)]
        self.loader = Batches()

    @property
    def parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("model", "optimizer", "scheduler", "scaler", "ema", "loader")}

    def train(self, steps: int) -> Loop:
        for _ in range(steps):
            x = torch.randn(16, 6) + random.random() + float(np.random.rand())
            self.scaler.scale(self.model(x).square().mean()).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.ema[0].update_parameters(self.model)
            self.ema[1].update(self.model)
            self.loader.at += 1
            self.loader.seen += 1
        return self

    def everything(self) -> dict[str, Any]:
        things = {
            "model": [self.model.state_dict(), self.model.mask],
            "optimizer": self.optimizer.state_dict(),
            "scheduler": {k: v for k, v in self.scheduler.state_dict().items() if not callable(v)},
            "scaler": self.scaler.state_dict(),
            "ema": [average.state_dict() for average in self.ema],
            "loader": self.loader.state_dict(),
        }
        return copy.deepcopy(things)


def assert_same(left: Any, right: Any, path: str = "") -> None:
    """Equal to the last bit, in all parts."""
    assert type(left) is type(right), path
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and torch.equal(left, right), path
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), path
        for key in left:
            assert_same(left[key], right[key], f"{path}.{key}")
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), path
        for number, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_same(a, b, f"{path}[{number}]")
    else:
        assert left == right, path
