"""A small training that computes the same again, or not: differs.py KIND.

KIND: same, unseeded, set, time, default-rng, workers or chaos.
"""

from __future__ import annotations

import os
import random
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

kind = sys.argv[1]
if kind != "unseeded":
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
names = {f"sample-{number}" for number in range(64)}
order = list(names) if kind == "set" else sorted(names)
mine = np.random.default_rng() if kind == "default-rng" else None


class Numbers(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return len(order)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(int(order[index].split("-")[1])))
        if kind == "time":
            x[0] = time.time() % 1
        if mine is not None:
            x += float(mine.normal())
        if kind == "workers" and torch.utils.data.get_worker_info() is not None:
            x += int.from_bytes(os.urandom(2), "little")
        return x, x.sum(0, keepdim=True)


model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loader = DataLoader(Numbers(), 8, True, num_workers=2 if kind == "workers" else 0)
for inputs, wanted in loader:
    output = model(inputs)
    if kind == "chaos":
        output = output + int.from_bytes(os.urandom(2), "little")
    loss = nn.functional.mse_loss(output, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("the end")
