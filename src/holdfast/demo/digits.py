"""The demo's training: a small convolutional network learns handwritten digits. It contains no Holdfast code.

It breaks itself on purpose, in two ways that happen to people: one image of the data set holds an Inf, and later, half-way
through, one bit of one weight flips, as it does in memory that fails.
"""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

BAD_IMAGE = 700


def load_data() -> tuple[DataLoader[tuple[torch.Tensor, ...]], DataLoader[tuple[torch.Tensor, ...]]]:
    """The 1,797 digits that come with scikit-learn, 80 % to train on."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    images[BAD_IMAGE, 0, 3, 4] = torch.inf
    data = TensorDataset(images, torch.tensor(digits.target))
    train, validation = random_split(data, [0.8, 0.2])
    return DataLoader(train, batch_size=64, shuffle=True), DataLoader(validation, batch_size=256)


def make_model() -> nn.Module:
    """Two convolutions and a classifier."""
    features = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
    )
    return nn.Sequential(features, nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))


def flip_a_bit(model: nn.Module) -> None:
    """Corrupt one weight of the last layer: the highest bit of its exponent, so that it becomes astronomically large."""
    weight = next(module for module in reversed(list(model.modules())) if isinstance(module, nn.Linear)).weight
    weight.data.view(torch.int32)[3, 7] ^= 1 << 30


def main(epochs: int = 30) -> None:
    """Train, and print the accuracy now and then."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # images of 8 x 8: more threads only wait for each other
    train, validation = load_data()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(train))
    for epoch in range(epochs):
        model.train()
        if epoch == epochs // 2:
            flip_a_bit(model)
        for images, labels in train:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scheduler.step()
        model.eval()
        correct = 0
        with torch.no_grad():
            for images, labels in validation:
                logits = model(images)
                nn.functional.cross_entropy(logits, labels)
                correct += int((logits.argmax(1) == labels).sum())
        print(f"epoch {epoch + 1:2d}: accuracy {100 * correct / len(validation.dataset):.1f} %", flush=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
