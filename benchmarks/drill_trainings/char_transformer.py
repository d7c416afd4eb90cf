"""A small transformer learns to write like Shakespeare, letter by letter; `--resume last.pt` goes on after the last pass."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import torch
from digits_data import DEVICE, WORKERS, begin
from learning import evaluate, learn
from torch.utils.data import DataLoader, TensorDataset

sys.path.append(str(Path(__file__).parents[1] / "healthy_trainings"))
from datasets import text
from sequences import Transformer

EPOCHS, LENGTH, BATCH, PIECES = 4, 32, 12, 720


def pieces(letters: torch.Tensor, count: int) -> TensorDataset:
    """Pieces of a text one after the other, and the same one character later."""
    return TensorDataset(letters[: count * LENGTH].view(count, LENGTH), letters[1 : count * LENGTH + 1].view(count, LENGTH))


def main() -> None:
    """Train, evaluate after each pass, keep the last and the best, and print the last loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    given = parser.parse_args()
    begin()
    letters, count = text()
    data = pieces(letters, PIECES)
    train = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=WORKERS)
    held_out = DataLoader(pieces(letters[150_000:], 200), batch_size=50)
    model = Transformer(count, width=32, length=LENGTH).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    steps = EPOCHS * len(train)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * (0.525 + 0.475 * math.cos(math.pi * step / steps))
    )
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    first, lowest, loss = 0, float("inf"), float("inf")
    if given.resume:
        saved = torch.load(given.resume)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        first, lowest = saved["epoch"], saved["lowest"]
    for epoch in range(first, EPOCHS):
        mean = learn(model, optimizer, schedule, train, clip=1.0)
        loss, accuracy = evaluate(model, held_out)
        print(f"epoch {epoch}: train loss {mean:.4f}, held-out loss {loss:.4f}, accuracy {accuracy:.4f}", flush=True)
        state = {name: part.state_dict() for name, part in parts.items()}
        state |= {"epoch": epoch + 1, "lowest": min(lowest, loss), "step": (epoch + 1) * len(train)}
        torch.save(state, "last.pt")
        if loss < lowest:
            lowest = loss
            torch.save(state, "best.pt")
    print(json.dumps({"loss": loss}))


if __name__ == "__main__":
    main()
