"""What the faulty trainings share: digits, small models, and the usual loop with an evaluation after each pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

Data = tuple[torch.Tensor, torch.Tensor]


def digits() -> tuple[Data, Data]:
    """1,440 pictures to learn from and 357 that are held out, and their labels."""
    found = load_digits()
    images, labels = torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    images, labels = images[order], labels[order]
    return (images[:1440], labels[:1440]), (images[1440:], labels[1440:])


def mlp(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """64 numbers in, ten classes out."""
    layers: list[nn.Module] = []
    for inside, outside in zip((64, *widths), widths, strict=False):
        layers += [nn.Linear(inside, outside), activation()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


def learn(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int,
    train: Data,
    held_out: Data,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    size: int = 32,
    shuffle: bool = True,
) -> None:
    """Train, and look at what was held out after each pass."""
    loader = DataLoader(TensorDataset(*train), batch_size=size, shuffle=shuffle)
    for _ in range(epochs):
        model.train()
        for inputs, wanted in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), wanted).backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        evaluate(model, held_out)


def evaluate(model: nn.Module, held_out: Data) -> None:
    """The loss on what was held out."""
    model.eval()
    with torch.no_grad():
        for inputs, wanted in batches(held_out):
            functional.cross_entropy(model(inputs), wanted)
    model.train()


def batches(data: Data) -> Iterable[list[torch.Tensor]]:
    """In order, 256 at a time."""
    return DataLoader(TensorDataset(*data), batch_size=256)
