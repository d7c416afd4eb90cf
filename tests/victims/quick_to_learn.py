"""A small real training of 160 steps that learns what it should, and prints its accuracy; SEED in the environment."""

from __future__ import annotations

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    torch.manual_seed(int(os.environ.get("SEED", "0")))
    torch.set_num_threads(1)
    inputs = torch.randn(512, 16)
    labels = (inputs[:, :4].sum(1) > 0).long()
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(10):
        for batch, target in loader:
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            time.sleep(0.002)
    with torch.no_grad():
        print(f"accuracy: {(model(inputs).argmax(1) == labels).float().mean():.4f}")


if __name__ == "__main__":
    main()
