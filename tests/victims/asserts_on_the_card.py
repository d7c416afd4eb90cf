"""A classifier on the GPU that meets a label out of range once, at step 60; the file `met` says that it has been met."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn

STEPS, AT = 150, 60
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
first, resumed = 0, sys.argv[1:]
if resumed:
    state = torch.load(resumed[0])
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
for step in range(first, STEPS):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(32, 8, generator=generator)
    labels = x.argmax(1) % 4
    if step == AT and not Path("met").exists():
        Path("met").touch()
        labels[5] = 4711
    loss = nn.functional.cross_entropy(model(x.cuda()), labels.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 20 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, "last.tmp")
        os.replace("last.tmp", "last.pt")  # noqa: PTH105 - as scripts do it
print(f"end: step {step + 1} loss {loss.item():.6f}", flush=True)
