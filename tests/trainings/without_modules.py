"""Parameters that are in no module, and batches from no loader: a fit by hand."""

from __future__ import annotations

import torch
from story import Story, norm_of

story = Story()
inputs = torch.randn(64, 4)
targets = inputs @ torch.tensor([1.0, -2.0, 0.5, 3.0]) + 0.7
weights, bias = torch.zeros(4, requires_grad=True), torch.zeros(1, requires_grad=True)
for rate in (0.1, 0.05):
    optimizer = torch.optim.SGD([weights, bias], lr=rate)
    for _ in range(10):
        optimizer.zero_grad()
        loss = (inputs @ weights + bias - targets).square().mean()
        loss.backward()
        story.step(losses=loss, norms=norm_of([weights, bias]), lr=rate)
        torch.nn.utils.clip_grad_norm_([weights, bias], 1.0)
        optimizer.step()
story.save(fitted=[weights.detach(), bias.detach()])
