"""Gradients of four batches make one step; the last step of an epoch makes do with fewer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch.utils.data import DataLoader

story = Story()
loader = DataLoader(digits(70), batch_size=8, shuffle=True)
model = classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(4):
    whole, samples, backwards = 0.0, 0, 0
    for number, (inputs, labels) in enumerate(loader, 1):
        loss = F.cross_entropy(model(inputs), labels) / 4
        loss.backward()
        whole, samples, backwards = whole + loss.item(), samples + len(labels), backwards + 1
        if number % 4 == 0 or number == len(loader):
            story.step(losses=whole, samples=samples, backwards=backwards, epochs=epoch, norms=norm_of(model.parameters()))
            optimizer.step()
            optimizer.zero_grad()
            whole, samples, backwards = 0.0, 0, 0
story.save(model)
