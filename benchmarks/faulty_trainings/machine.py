"""Trainings that waste memory or time."""

from __future__ import annotations

import time

import torch
from loop import Data, digits, mlp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Adam
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Slow(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pictures that take their time: all, or those that one worker reads."""

    def __init__(self, data: Data, seconds: float, *, worker: int | None = None) -> None:
        self._data, self._seconds, self._worker = data, seconds, worker

    def __len__(self) -> int:
        return len(self._data[0])

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        here = get_worker_info()
        if self._worker is None or (here is not None and here.id == self._worker):
            time.sleep(self._seconds)
        return self._data[0][index], self._data[1][index]


def leak() -> None:
    """Losses are kept with all that made them."""
    (images, labels), _ = digits()
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = Adam(model.parameters(), lr=1e-3)
    history = []
    for _ in range(400):
        chosen = torch.randint(len(images), (256,))
        loss = cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        history.append(loss)


def slow_loader() -> None:
    train, _ = digits()
    _draw(DataLoader(Slow(train, 0.0015), batch_size=16, shuffle=True), epochs=2)


def slow_worker() -> None:
    train, _ = digits()
    _draw(DataLoader(Slow(train, 0.004, worker=1), batch_size=8, shuffle=True, num_workers=3), epochs=1)


def _draw(loader: DataLoader[tuple[torch.Tensor, torch.Tensor]], *, epochs: int) -> None:
    model = mlp(64)
    optimizer = Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for inputs, wanted in loader:
            optimizer.zero_grad()
            cross_entropy(model(inputs), wanted).backward()
            optimizer.step()


FAULTS = {"leak": leak, "slow-loader": slow_loader, "slow-worker": slow_worker}
