"""A training with loader workers and slow samples, that catches Ctrl-C itself."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset[Any]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, place: int) -> Any:
        time.sleep(0.1)
        return torch.full((4,), float(place % 7))


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
try:
    for batch in DataLoader(Slow(), batch_size=4, num_workers=2):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
except KeyboardInterrupt:
    print("the script has caught it", flush=True)
