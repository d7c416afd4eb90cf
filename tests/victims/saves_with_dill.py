"""A training whose optimizer dill saves, class and all: saves_with_dill.py FILE. Continues from the file if it is there."""

from __future__ import annotations

import sys
from pathlib import Path

import dill
import torch
from torch import nn

dill.settings["recurse"] = True
path = Path(sys.argv[1])
torch.manual_seed(0)
inputs = torch.randn(40, 8, 4)
model = nn.Linear(4, 1)
optimizer, done = torch.optim.Adam(model.parameters(), lr=0.1), 0
if path.exists():
    model, optimizer, done = dill.loads(path.read_bytes())
for step in range(done, done + 20):
    loss = model(inputs[step]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
path.write_bytes(dill.dumps((model, optimizer, done + 20)))
print([value.item() for value in model.weight[0]])
