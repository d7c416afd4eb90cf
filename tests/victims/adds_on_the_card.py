"""A seeded training on the GPU whose sums are added in another order each time: many numbers into few rows."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh()).cuda()
head = nn.Linear(64, 1).cuda()
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
for step in range(6):
    x = torch.randn(200_000, 64, generator=torch.Generator().manual_seed(step)).cuda()
    rows = torch.randint(0, 4, (len(x),), generator=torch.Generator().manual_seed(step)).cuda()
    sums = torch.zeros(4, 64, device="cuda").index_add(0, rows, model(x))
    loss = head(sums / 1000).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
