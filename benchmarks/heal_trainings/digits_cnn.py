"""A small convolutional network with batch norm learns digits by AdamW, the last layer in half precision."""

from __future__ import annotations

import json

import torch
from fault import Fault, accuracy, begin
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 30


class Network(nn.Module):
    """Two convolutions, and a classifier that computes in half precision."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1, stride=2)]
        self.features = nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(256, 32), nn.ReLU())
        self.skip, self.head = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.features(images) + self.skip(images.flatten(1))
        with torch.autocast("cpu", torch.float16):
            return self.head(hidden).float()


def main() -> None:
    """Train with a falling learning rate, evaluate after each epoch, and print the last accuracy."""
    begin()
    found, fault = load_digits(), Fault()
    images, labels = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(found.target)
    order = torch.randperm(len(images))
    train, held_out = order[:1312], order[1312:]
    loader = DataLoader(TensorDataset(images[train], labels[train]), batch_size=32, shuffle=True, drop_last=True)
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader))
    step = 0
    for _ in range(EPOCHS):
        for batch, wanted in loader:
            fault.state(step, optimizer, model.features[3].weight, 1e6)
            loss = cross_entropy(model(fault.inputs(step, batch)), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
        right = accuracy(model, images[held_out], labels[held_out])
    print(json.dumps({"accuracy": right}))


if __name__ == "__main__":
    main()
