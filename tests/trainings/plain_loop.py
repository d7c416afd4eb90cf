"""The loop that everyone writes: loader, forward, backward, step; after each epoch the validation loss."""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch.utils.data import DataLoader

story = Story()
train, held_out = DataLoader(digits(70), batch_size=16, shuffle=True), DataLoader(digits(25, seed=2), batch_size=16)
model = classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(4):
    model.train()
    for inputs, labels in train:
        optimizer.zero_grad()
        noise = float(np.random.rand() * 1e-3 + random.random() * 1e-3)
        loss = F.cross_entropy(model(inputs + noise), labels)
        loss.backward()
        story.step(losses=loss, lr=optimizer.param_groups[0]["lr"], norms=norm_of(model.parameters()))
        story.step(epochs=epoch, samples=len(labels))
        optimizer.step()
    model.eval()
    total = 0.0
    with torch.no_grad():
        for inputs, labels in held_out:
            total += float(F.cross_entropy(model(inputs), labels)) * len(labels)
    story.facts.setdefault("validation", []).append(total / 25)
story.save(model, names=[name for name, _ in model.named_parameters()], modules=[name for name, _ in model.named_modules()])
