"""A plain recurrent network with ReLU reads digits row by row, by Adam and without clipping."""

from __future__ import annotations

import json

import torch
from fault import Fault, accuracy, begin
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

STEPS = 1200


class Reader(nn.Module):
    """Reads a picture row by row and then names the digit."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.net, self.head = nn.RNN(8, width, nonlinearity="relu", batch_first=True), nn.Linear(width, 10)
        self.net.weight_hh_l0.data = 0.5 * torch.eye(width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(rows)[0][:, -1])


def main() -> None:
    """Train, and print the accuracy on held-out digits."""
    begin()
    found, fault = load_digits(), Fault()
    rows, labels = torch.tensor(found.data, dtype=torch.float32).view(-1, 8, 8) / 8 - 1, torch.tensor(found.target)
    order = torch.randperm(len(rows))
    train, held_out = order[:1300], order[1300:]
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(STEPS):
        chosen = train[torch.randint(len(train), (64,))]
        fault.state(step, optimizer, model.net.weight_hh_l0, 100.0)
        loss = cross_entropy(model(fault.inputs(step, rows[chosen])), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(json.dumps({"accuracy": accuracy(model, rows[held_out], labels[held_out])}))


if __name__ == "__main__":
    main()
