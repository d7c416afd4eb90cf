"""The optimizer calls the loss itself: closures.py OUT lbfgs|adam."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch.utils.data import DataLoader

story = Story()
loader = DataLoader(digits(70), batch_size=35)
model = classifier()
with_lbfgs = sys.argv[2] == "lbfgs"
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4) if with_lbfgs else torch.optim.Adam(model.parameters())
for epoch in range(6):
    for inputs, labels in loader:
        calls = []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)  # noqa: B023 - called before the next batch
            loss.backward()
            calls.append((loss.item(), norm_of(model.parameters())))  # noqa: B023
            return loss

        returned = optimizer.step(closure)
        story.step(losses=calls[0][0], norms=calls[0][1], calls=len(calls), returned=returned, epochs=epoch, samples=len(labels))
story.save(model)
