"""Compiled in different ways: compiled.py OUT module|in_place|part|function|optimizer|loss_inside."""

from __future__ import annotations

import sys

import torch
import torch._dynamo
import torch.nn.functional as F
from story import Story, digits, norm_of
from torch import nn
from torch.utils.data import DataLoader

how = sys.argv[2]
story = Story()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(32, 10)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        scores = self.head(self.body(inputs))
        return scores if labels is None else F.cross_entropy(scores, labels)


model = plain = Model()
optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
step = optimizer.step
if how in ("module", "loss_inside"):
    model = torch.compile(plain, backend="aot_eager")
elif how == "in_place":
    plain.compile(backend="eager")
elif how == "part":
    plain.body = torch.compile(plain.body, backend="eager")
elif how == "optimizer":
    step = torch.compile(optimizer.step, backend="eager")


def loss_of(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return model(inputs, labels) if how == "loss_inside" else F.cross_entropy(model(inputs), labels)


if how == "function":
    loss_of = torch.compile(loss_of, backend="eager")

loader = DataLoader(digits(70), batch_size=16, shuffle=True)
for epoch in range(5):
    model.train()
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = loss_of(inputs, labels)
        loss.backward()
        story.step(losses=loss, norms=norm_of(plain.parameters()), epochs=epoch, samples=len(labels))
        step()
    if how == "loss_inside":
        model.eval()
        with torch.no_grad():
            story.facts.setdefault("validation", []).append(float(loss_of(inputs, labels)))
stats = torch._dynamo.utils.counters["stats"]
graphs = {name: int(stats[name]) for name in ("calls_captured", "unique_graphs")}
breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
story.save(plain, graphs=graphs, breaks=breaks, recompiles=sum(torch._dynamo.utils.counters["recompiles"].values()))
