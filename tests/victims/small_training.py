"""A small real training that nobody prepared for Holdfast: small_training.py [SECONDS], 3 by default, and 16 passes at least."""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(seconds: float) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs = torch.randn(512, 16)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    until, passes = time.monotonic() + seconds, 0
    while passes < 16 or time.monotonic() < until:
        passes += 1
        for batch, target in loader:
            loss = nn.functional.mse_loss(model(batch), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            time.sleep(0.01)
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0)
