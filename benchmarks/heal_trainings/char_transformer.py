"""A small transformer learns to write like Shakespeare, character by character, with a hand-made loss scale."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from fault import Fault, begin, negative_log_likelihood
from torch import nn

sys.path.append(str(Path(__file__).parents[1] / "healthy_trainings"))
from datasets import text
from sequences import Transformer

STEPS, LENGTH = 1300, 32


def rows(letters: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Some pieces of the text, and the same one character later."""
    starts = torch.randint(len(letters) - LENGTH - 1, (count,))
    found = letters[starts[:, None] + torch.arange(LENGTH + 1)]
    return found[:, :-1], found[:, 1:]


def main() -> None:
    """Train, and print the loss on text that was held out."""
    begin()
    letters, count = text()
    fault, held_out = Fault(), rows(letters[180_000:], 256)
    letters = letters[:180_000]
    model = Transformer(count, width=32, length=LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    scale = 2048.0
    for step in range(STEPS):
        inputs, wanted = rows(letters, 8)
        if (fault.kind, fault.step) == ("spike-that-recovers", step):
            wanted = torch.randint_like(wanted, count)  # a piece of noise in the text
        fault.state(step, optimizer, model.layers.layers[0].linear1.weight, 1e5)
        loss = negative_log_likelihood(model(inputs), fault.labels(step, wanted, count))
        now = fault.scale(step, scale)
        optimizer.zero_grad()
        (loss.half() * now).backward()
        for parameter in model.parameters():
            parameter.grad /= now
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print(json.dumps({"loss": float(negative_log_likelihood(model(held_out[0]), held_out[1]))}))


if __name__ == "__main__":
    main()
