"""A plain recurrent network with ReLU reads digits row by row, by Adam and without clipping. It knows nothing of resuming."""

from __future__ import annotations

import json

import torch
from digits_data import DEVICE, begin, loaders
from learning import evaluate, learn
from torch import nn

EPOCHS = 8


class Reader(nn.Module):
    """Reads a picture row by row and then names the digit."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.net, self.head = nn.RNN(8, width, nonlinearity="relu", batch_first=True), nn.Linear(width, 10)
        self.net.weight_hh_l0.data = 0.5 * torch.eye(width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(rows)[0][:, -1])


def main() -> None:
    """Train, evaluate after each pass, keep the last and the best, and print the last accuracy."""
    begin()
    train, held_out = loaders(32, 8, 8)
    model = Reader().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, EPOCHS * len(train))
    lowest, accuracy = float("inf"), 0.0
    for epoch in range(EPOCHS):
        mean = learn(model, optimizer, schedule, train)
        loss, accuracy = evaluate(model, held_out)
        print(f"epoch {epoch}: train loss {mean:.4f}, held-out loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, "last.pt")
        if loss < lowest:
            lowest = loss
            torch.save(state, "best.pt")
    print(json.dumps({"accuracy": accuracy}))


if __name__ == "__main__":
    main()
