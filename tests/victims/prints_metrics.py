"""A training that prints its metrics: prints_metrics.py STYLE, one of the keys of LINES."""

# ruff: noqa: E402 - it prints before it imports torch

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

print("target accuracy: 0.99", flush=True)  # long before the first step

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LINES = {
    "bare": "Accuracy: {right}/{of}",
    "split": "epoch {epoch} loss {loss:.4f} acc 0.5 val_loss {held_out:.4f} val_acc {accuracy:.4f}",
    "heading": "Epoch {epoch}\nTest set: Average loss: {held_out:.4f}, Accuracy: {right}/{of} ({percent:.0f}%)",
    "logged": "val_acc {accuracy:.4f}",
    "every step": "val_acc {accuracy:.4f}",
    "killed once": "val_acc {accuracy:.4f}",
}


def main(style: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs = torch.randn(256, 8)
    loader = DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=32, shuffle=True)
    held_out = torch.randn(357, 8)
    labels = (held_out.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run = watched(model, optimizer) if style == "logged" else None
    for epoch in range(1, 5):
        model.train()
        for batch, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            if style == "every step":
                print(f"loss {loss:.4f} acc 0.5")
            time.sleep(0.03)  # a line that comes a moment late still comes before the next evaluation
        model.eval()
        with torch.no_grad():
            scores = model(held_out)
            held_out_loss = nn.functional.cross_entropy(scores, labels) if style != "bare" else loss
        right = int((scores.argmax(1) == labels).sum())
        if run is not None:
            run.log(accuracy=right / 357, split="val")
        facts = {"epoch": epoch, "loss": loss, "held_out": held_out_loss, "accuracy": right / 357, "percent": right / 3.57}
        print(LINES[style].format(right=right, of=357, **facts), flush=True)
        if style == "killed once" and epoch == 2 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def watched(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    import holdfast

    return holdfast.watch(model, optimizer)


if __name__ == "__main__":
    main(sys.argv[1])
