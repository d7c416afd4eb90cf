"""A fully connected network learns digits by SGD with momentum and a falling rate. It knows nothing of resuming."""

from __future__ import annotations

import json

import torch
from digits_data import DEVICE, begin, loaders
from learning import evaluate, learn
from torch import nn

EPOCHS = 8


def main() -> None:
    """Train, evaluate after each pass, keep the last and the best, and print the last accuracy."""
    begin()
    train, held_out = loaders(32, 64)
    model = nn.Sequential(nn.Linear(64, 320), nn.ReLU(), nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(train))
    best = accuracy = 0.0
    for epoch in range(EPOCHS):
        mean = learn(model, optimizer, schedule, train)
        loss, accuracy = evaluate(model, held_out)
        print(f"epoch {epoch}: train loss {mean:.4f}, held-out loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
        torch.save(model.state_dict(), "last.pt")
        if accuracy > best:
            best = accuracy
            torch.save(model.state_dict(), "best.pt")
    print(json.dumps({"accuracy": accuracy}))


if __name__ == "__main__":
    main()
