"""Saves into one file again and again, as scripts do with last.pt: python saves_over_itself.py STEPS"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
Path("out").mkdir(exist_ok=True)
for step in range(1, int(sys.argv[1]) + 1):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
    if step in (1, 2) or step % 20 == 0:
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(content, "out/first.pt" if step == 1 else "out/last.pt")
        print("saved", step, flush=True)
