"""A small convolutional network with batch norm learns digits by AdamW, the last layer in half precision.

`--resume last.pt` goes on after the last full pass.
"""

from __future__ import annotations

import argparse
import json

import torch
from digits_data import DEVICE, begin, loaders
from learning import evaluate, learn
from torch import nn

EPOCHS = 8


class Network(nn.Module):
    """Two convolutions beside a straight way, and a classifier that computes in half precision."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1, stride=2)]
        self.features = nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(256, 64), nn.ReLU())
        self.straight, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.features(images) + self.straight(images.flatten(1))
        with torch.autocast(DEVICE, torch.float16):
            return self.head(hidden).float()


def main() -> None:
    """Train, evaluate after each pass, keep the last and the best, and print the last accuracy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    given = parser.parse_args()
    begin()
    train, held_out = loaders(32, 1, 8, 8)
    model = Network().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(train))
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    first, best, accuracy = 0, 0.0, 0.0
    if given.resume:
        saved = torch.load(given.resume)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        first, best = saved["epoch"], saved["best"]
    for epoch in range(first, EPOCHS):
        mean = learn(model, optimizer, schedule, train)
        loss, accuracy = evaluate(model, held_out)
        print(f"epoch {epoch}: train loss {mean:.4f}, held-out loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
        state = {name: part.state_dict() for name, part in parts.items()}
        state |= {"epoch": epoch + 1, "best": max(best, accuracy), "step": (epoch + 1) * len(train)}
        torch.save(state, "last.pt")
        if accuracy > best:
            best = accuracy
            torch.save(state, "best.pt")
    print(json.dumps({"accuracy": accuracy}))


if __name__ == "__main__":
    main()
