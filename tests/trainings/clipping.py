"""Gradients are clipped by the script: clipping.py OUT all|parts|head. `parts` clips each half, `head` only the last layer."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

what = sys.argv[2]
story = Story()
loader = DataLoader(digits(70), batch_size=16, shuffle=True)
model = classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
parts = {"all": [model], "parts": [model[:4], model[4:]], "head": [model[-1]]}[what]
for _ in range(4):
    for inputs, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        story.step(norms=norm_of(model.parameters()))
        story.step(clipped=[float(clip_grad_norm_(part.parameters(), max_norm=0.25)) for part in parts])
        optimizer.step()
story.save(model)
