"""A training that saves its best, breaks its own weights, and saves again: `python saves_nan.py HOW`, a way to save."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import torch
from torch import nn

how, path = sys.argv[1], Path("best.pt")
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def save() -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "best": math.inf}
    if how == "path":
        torch.save(state, path)
    elif how == "atomic":
        torch.save(state, path.with_suffix(".tmp"))
        os.replace(path.with_suffix(".tmp"), path)  # noqa: PTH105
    elif how == "file":
        with path.open("wb") as file:
            torch.save(state, file)
    elif how == "whole":
        torch.save(model, path)
    elif how == "optimizer":
        torch.save({"optimizer": optimizer.state_dict()}, path)


def step() -> None:
    inputs = torch.randn(16, 8)
    optimizer.zero_grad()
    (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()


for number in range(60):
    step()
    if number == 29:
        save()
        path.with_suffix(".copy").write_bytes(path.read_bytes())
    if number == 39:  # past every guard: no gradient is to blame
        with torch.no_grad():
            model[2].weight.fill_(math.nan)
            for state in optimizer.state.values():
                state["exp_avg"].fill_(math.nan)
    if number in (49, 59):
        save()
print("the end")
