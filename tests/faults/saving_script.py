"""What a script that saves and loads by itself does, in the process of the tests, and what its run tells of it."""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import nn

from holdfast.inside.arm import armed
from holdfast.signals.run_folder import RunFolder

SAVE, LOAD, REPLACE, RENAME = torch.save, torch.load, os.replace, os.rename  # as they are before anything is armed


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()


def checkpoints(run: RunFolder, *events: str) -> list[dict[str, Any]]:
    return [row for row in run.journal if row["kind"] == "checkpoint" and (not events or row["event"] in events)]


def findings(run: RunFolder) -> list[dict[str, Any]]:
    return [row for row in run.journal if row["kind"] == "finding"]


def spoil(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters())[0, 0] = math.nan


def resumed(run: RunFolder) -> list[dict[str, Any]]:
    armed().close_all()  # what waits is written
    return checkpoints(run, "resumed")


def save_all(path: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def resumed_count(run: RunFolder) -> int:
    return len(checkpoints(run, "resumed"))
