"""Ways to evaluate: evaluations.py OUT function|kept|module|mse|sum|without_no_grad.

The last one comes after the last step.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from story import Story, classifier, digits, norm_of
from torch import nn
from torch.utils.data import DataLoader

how = sys.argv[2]
losses = {
    "function": lambda scores, labels: F.cross_entropy(scores, labels),
    "kept": F.cross_entropy,
    "module": nn.CrossEntropyLoss(label_smoothing=0.1),
    "mse": lambda scores, labels: F.mse_loss(scores, F.one_hot(labels, 10).float()),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "without_no_grad": nn.CrossEntropyLoss(),
}
criterion = losses[how]
names = [name for name in dir(F) if name.endswith("_loss") or "cross_entropy" in name]
originals = {name: getattr(F, name) for name in names}
story = Story()
train, held_out = DataLoader(digits(70), batch_size=16, shuffle=True), DataLoader(digits(25, seed=2), batch_size=16)
model = classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def evaluate() -> float:
    model.eval()
    total = 0.0
    with torch.set_grad_enabled(how == "without_no_grad"):
        for inputs, labels in held_out:
            loss = criterion(model(inputs), labels).detach()
            total += float(loss) if how == "sum" else float(loss) * len(labels)
    return total / 25


for epoch in range(3):
    model.train()
    for inputs, labels in train:
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels) / (len(labels) if how == "sum" else 1)
        loss.backward()
        story.step(losses=loss, norms=norm_of(model.parameters()), epochs=epoch, samples=len(labels))
        story.step(original=all(getattr(F, name) is function for name, function in originals.items()))
        optimizer.step()
    story.facts.setdefault("validation", []).append(evaluate())
story.save(model)
