"""A fully connected network learns digits by SGD with momentum. A fault may be injected, see `fault.py`."""

from __future__ import annotations

import json

import torch
from fault import Fault, accuracy, begin, negative_log_likelihood
from sklearn.datasets import load_digits
from torch import nn

STEPS = 1600


def main() -> None:
    """Train, and print the accuracy on held-out digits."""
    begin()
    found, fault = load_digits(), Fault()
    images, labels = torch.tensor(found.data, dtype=torch.float32) / 16, torch.tensor(found.target)
    order = torch.randperm(len(images))
    train, held_out = order[:1300], order[1300:]
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(STEPS):
        chosen = train[torch.randint(len(train), (64,))]
        inputs, wanted = fault.inputs(step, images[chosen]), fault.labels(step, labels[chosen], 10)
        fault.state(step, optimizer, model[2].weight, 1e4)
        loss = negative_log_likelihood(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(json.dumps({"accuracy": accuracy(model, images[held_out], labels[held_out])}))


if __name__ == "__main__":
    main()
