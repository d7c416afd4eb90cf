"""Uses torch, a model and a loader, and trains nothing."""

from __future__ import annotations

import torch
from story import Story, classifier, digits
from torch.utils.data import DataLoader

story = Story()
model = classifier().eval()
with torch.no_grad():
    for inputs, _ in DataLoader(digits(70), batch_size=16, num_workers=2):
        story.step(outputs=float(model(inputs).sum()))
model(inputs).sum().backward()
story.save(model)
