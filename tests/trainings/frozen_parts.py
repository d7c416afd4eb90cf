"""Fine-tuning: most of the model stays in evaluation mode during training, and is not trained: frozen_parts.py OUT norms|body."""

from __future__ import annotations

import sys
import time

import torch
import torch.nn.functional as F
from story import Story, digits, norm_of
from torch import nn
from torch.utils.data import DataLoader


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64))
        self.head = nn.Linear(64, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs))


story = Story()
loader = DataLoader(digits(70), batch_size=16, shuffle=True)
model = Model()
frozen = model.body if sys.argv[2] == "body" else model.body[2]
for parameter in frozen.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
for epoch in range(4):
    model.train()
    frozen.eval()
    for inputs, labels in loader:
        time.sleep(0.005)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        story.step(losses=loss, norms=norm_of(model.parameters()), epochs=epoch, samples=len(labels))
        optimizer.step()
story.save(model)
