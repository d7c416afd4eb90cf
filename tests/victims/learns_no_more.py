"""A training whose validation loss gets better for a while and then no more; it would go on for minutes."""

from __future__ import annotations

import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.randn(256, 4)
y = x.sum(1, keepdim=True) + 0.5 * torch.randn(256, 1)
for _ in range(4000):
    model.train()
    for batch in range(0, 192, 64):
        loss = nn.functional.mse_loss(model(x[batch : batch + 64]), y[batch : batch + 64])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        nn.functional.mse_loss(model(x[192:]), y[192:])
    time.sleep(0.03)
print("went on to the end")
