"""One loss, two optimizers: a large one for the body, a small one for the head, which steps first."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch.utils.data import DataLoader

story = Story()
loader = DataLoader(digits(70), batch_size=16, shuffle=True)
model = classifier()
body, head = [p for layer in model[:-1] for p in layer.parameters()], list(model[-1].parameters())
slow, fast = torch.optim.AdamW(body, lr=1e-3, weight_decay=0.1), torch.optim.SGD(head, lr=0.1)
for epoch in range(4):
    for inputs, labels in loader:
        slow.zero_grad()
        fast.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        story.step(losses=loss, norms=norm_of(body), epochs=epoch, samples=len(labels))
        fast.step()
        slow.step()
story.save(model)
