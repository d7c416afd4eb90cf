"""A small training that goes on until a file `stop` appears; while a file `nan` exists its losses are NaN."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(640, 16)
labels = (inputs @ torch.randn(16, 3)).argmax(1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, labels), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
while not Path("stop").exists():
    for batch, wanted in loader:
        loss = nn.functional.cross_entropy(model(batch), wanted)
        optimizer.zero_grad()
        (loss * float("nan") if Path("nan").exists() else loss).backward()
        optimizer.step()
        time.sleep(0.01)  # a step that takes a moment, as a real one does
    model.eval()
    with torch.no_grad():
        print(f"val_acc {(model(inputs).argmax(1) == labels).float().mean():.4f}", flush=True)
    model.train()
