"""A new optimizer for the same model, twice: after some epochs; and a first one over all weights that is never used."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch.utils.data import DataLoader

story = Story()
loader = DataLoader(digits(70), batch_size=16, shuffle=True)
model = classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
never_used = optimizer
for parameter in model[0].parameters():
    parameter.requires_grad = False
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for epoch in range(4):
    if epoch == 2:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        norm = norm_of(model.parameters())
        story.step(losses=loss, norms=norm, lr=optimizer.param_groups[0]["lr"], epochs=epoch, samples=len(labels))
        optimizer.step()
story.save(model)
