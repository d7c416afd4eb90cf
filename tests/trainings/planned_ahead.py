"""Two models and their optimizers are made up front; the smaller is trained first, then the larger."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch.utils.data import DataLoader

story = Story()
models = [classifier(8), classifier(32)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
    for _ in range(6):
        for inputs, labels in DataLoader(digits(70), batch_size=16):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            story.step(losses=loss, norms=norm_of(model.parameters()), training=number)
            optimizer.step()
story.save(*models)
