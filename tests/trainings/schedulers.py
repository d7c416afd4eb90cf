"""Learning rates that change: schedulers.py OUT step|epoch|tensor. Two groups of parameters, each with its own."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch.utils.data import DataLoader

when = sys.argv[2]
story = Story()
loader = DataLoader(digits(70), batch_size=16, shuffle=True)
model = classifier()
groups = [{"params": model[:4].parameters(), "lr": 1e-3, "weight_decay": 0.1}, {"params": model[4:].parameters()}]
if when == "tensor":
    groups[0]["lr"] = torch.tensor(1e-3)
optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.01)
if when == "epoch":
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
else:
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
for _ in range(4):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        story.step(losses=loss, norms=norm_of(model.parameters()), rates=rates)
        optimizer.step()
        if when != "epoch":
            scheduler.step()
    if when == "epoch":
        scheduler.step()
story.save(model)
