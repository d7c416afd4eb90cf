"""Checkpoints as trainings leave them behind: good ones, and one of each kind of trouble."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    """One of many layers that are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)


class Payload:
    """What an attacker puts into a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {self.path}",)


def training(step: int = 100) -> dict[str, Any]:
    """What a script saves."""
    torch.manual_seed(step)
    model = nn.ModuleDict({"blocks": nn.ModuleList(Block() for _ in range(6)), "head": nn.Linear(8, 3)})
    optimizer = torch.optim.AdamW(model.parameters())
    sum(parameter.square().sum() for parameter in model.parameters()).backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
        "epoch": step // 100,
        "val_acc": 0.5 + step / 1000,
        "config": {"lr": 0.001, "layers": 6, "data": "digits"},
    }


def save(path: Path, content: Any) -> Path:
    """Write it as scripts do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


def one_of_each(folder: Path) -> Path:
    """A folder with a clean checkpoint, and one of each other state."""
    clean = save(folder / "ckpt_100.pt", training(100))
    bad = training(200)
    bad["model"]["blocks.3.up.weight"][0, :5] = float("nan")
    bad["model"]["head.bias"][0] = float("inf")
    save(folder / "ckpt_200.pt", bad)
    (folder / "last.pt").write_bytes(clean.read_bytes()[:-500])
    (folder / "page.pt").write_text("<!DOCTYPE html><html>Please log in</html>", encoding="utf-8")
    save(folder / "evil.pt", {**training(300), "x": Payload(folder / "ran")})
    return folder
