"""A small training of which snapshots are taken."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from holdfast.state.snapshots import Snapshots
from holdfast.state.training_state import TrainingState


class Loop:
    """A small real training with BatchNorm, AdamW and a schedule."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 1e-2, total_steps=2000)
        torch.manual_seed(1)
        self.x, self.y = torch.randn(64, 16, 6), torch.randint(0, 3, (64, 16))
        self.state = TrainingState.discover([self.model], [self.optimizer])

    def run(self, begin: int, end: int, between: Callable[[int], Any] = lambda step: None) -> dict[str, Any]:
        for number in range(begin, end):
            between(number)
            nn.functional.cross_entropy(self.model(self.x[number % 64]), self.y[number % 64]).backward()
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
        return self.everything()

    def everything(self) -> dict[str, Any]:
        parts = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        for number, entry in self.optimizer.state_dict()["state"].items():
            parts.update({f"{number}.{k}": v for k, v in entry.items()})
        parts["lr"] = torch.tensor([*self.schedule.get_last_lr(), self.optimizer.param_groups[0]["lr"]], dtype=torch.float64)
        return copy.deepcopy(parts)


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def snapshots_of(loop: Loop, **settings: Any) -> Snapshots:
    return Snapshots(lambda: loop.state, **{"memory_limit": 1 << 24, "budget": 1e9, **settings})
