"""A small model, and files of it as scripts leave them, for the tests of `holdfast.load`."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from checkpoint_files import Payload
from torch import nn


class Net(nn.Module):
    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 6, 1, bias=False))
        self.fc = nn.Linear(6, classes)
        self.register_buffer("scratch", torch.zeros(3), persistent=False)


def trained(seed: int = 1, classes: int = 5) -> Net:
    """A model whose every number, also of its statistics, differs from a fresh one's."""
    torch.manual_seed(seed)
    model = Net(classes)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape) * 10 if tensor.is_floating_point() else torch.full_like(tensor, 7))
    return model


def fresh(seed: int = 0, classes: int = 5) -> Net:
    torch.manual_seed(seed)
    return Net(classes)


def same(one: nn.Module, other: nn.Module) -> bool:
    here, there = one.state_dict(), other.state_dict()
    return here.keys() == there.keys() and all(torch.equal(here[name], there[name]) for name in here)


def bits(*holders: Any) -> list[tuple[str, bytes]]:
    """Every byte of models and optimizers."""
    found: list[tuple[str, bytes]] = []

    def walk(name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            found.append((name, value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()))
        elif isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name}.{key}", inner)
        elif isinstance(value, (list, tuple)):
            for number, inner in enumerate(value):
                walk(f"{name}.{number}", inner)
        else:
            found.append((name, repr(value).encode()))

    for holder in holders:
        walk(type(holder).__name__, copy.deepcopy(holder.state_dict()))
    return found


def as_state_dict(model: nn.Module, folder: Path) -> Path:
    torch.save(model.state_dict(), folder / "a.pt")
    return folder / "a.pt"


def stepped(model: nn.Module, kind: Any = torch.optim.AdamW, **settings: Any) -> torch.optim.Optimizer:
    optimizer = kind(model.parameters(), **{"lr": 1e-3, **settings})
    torch.manual_seed(2)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer


def full(folder: Path, model: nn.Module, **names: Any) -> Path:
    torch.save({"state_dict": model.state_dict(), "epoch": 4, **names}, folder / "full.pt")
    return folder / "full.pt"


def pickled_payload(folder: Path, model: nn.Module) -> Path:
    """A file that would make another one, named `ran`, if anything in it were run."""
    torch.save({"state_dict": model.state_dict(), "hook": Payload(folder / "ran")}, folder / "evil.pt")
    return folder / "evil.pt"
