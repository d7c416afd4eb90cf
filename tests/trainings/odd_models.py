"""Models with something special: odd_models.py OUT inplace|sparse|experts|checkpoint|complex."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from story import Story, digits, norm_of
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

kind = sys.argv[2]
story = Story()


class Inplace(nn.Module):
    """In-place operations behind and inside modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)
        self.relu, self.elu, self.drop = nn.ReLU(inplace=True), nn.ELU(inplace=True), nn.Dropout(0.1, inplace=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.second(self.relu(self.first(inputs.flatten(1))))
        hidden += 1.0
        return self.third(self.elu(self.drop(hidden))).mul_(2.0)


class Sparse(nn.Module):
    """An embedding with sparse gradients; rows are used several times in a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(50, 16, sparse=True, mode="sum")
        self.out = nn.Linear(16, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.out(self.table((inputs.flatten(1)[:, :12].abs() * 10).long() % 50))


class Scales(nn.Module):
    """An expert of another size."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.weight


class Experts(nn.Module):
    """One expert of three works at a time; the other two have no gradient. One more parameter is never used at all."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 32)
        self.experts = nn.ModuleList([nn.Linear(32, 32, bias=False), Scales(), nn.Linear(32, 32, bias=False)])
        self.never = nn.Parameter(torch.zeros(3))
        self.last = nn.Linear(32, 10)
        self.turn = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        return self.last(self.experts[self.turn % 3](self.first(inputs.flatten(1))).relu())


class Checkpointed(nn.Module):
    """Recomputes its middle in the backward pass, the reentrant way: a `backward` inside a `backward`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.middle, self.first(inputs.flatten(1)), use_reentrant=True)
        return self.last(hidden.relu())


class Complex(nn.Module):
    """Complex weights, double and half precision, and a parameter without values, in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(8, 5, dtype=torch.complex64))
        self.wide = nn.Linear(64, 10, dtype=torch.float64)
        self.narrow = nn.Linear(64, 10, dtype=torch.bfloat16)
        self.nothing = nn.Parameter(torch.empty(0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        seen = torch.fft.irfft2(torch.fft.rfft2(inputs[:, 0]) * self.filter).flatten(1)
        return self.wide(seen.double()).float() + self.narrow(seen.bfloat16()).float() + self.nothing.sum()


models = {"inplace": Inplace, "sparse": Sparse, "experts": Experts, "checkpoint": Checkpointed, "complex": Complex}
model = models[kind]()
loader = DataLoader(digits(70), batch_size=16, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(4):
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        each = {name: norm_of([p]) for name, p in model.named_parameters() if p.grad is not None}
        story.step(losses=loss, norms=norm_of(model.parameters()), each=each)
        optimizer.step()
story.save(model)
