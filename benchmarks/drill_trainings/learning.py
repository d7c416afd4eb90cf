"""One pass of learning and one of evaluation, for the trainings that are plain loops over labelled batches."""

from __future__ import annotations

import torch
from digits_data import DEVICE, keep_pace
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from tracker import track


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: object, loader: DataLoader, clip: float = 0.0) -> float:
    """One pass over the data; gives the mean loss."""
    model.train()
    total = 0.0
    for inputs, wanted in loader:
        optimizer.zero_grad()
        logits = model(inputs.to(DEVICE))
        loss = cross_entropy(logits.flatten(0, -2), wanted.to(DEVICE).flatten())
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        schedule.step()
        total += loss.item()
        track("train loss", loss.item())
        keep_pace()
    return total / len(loader)


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """Loss and accuracy on held-out data."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    for inputs, wanted in loader:
        logits = model(inputs.to(DEVICE)).flatten(0, -2)
        wanted = wanted.to(DEVICE).flatten()
        loss += cross_entropy(logits, wanted).item() * len(wanted)
        right += int((logits.argmax(1) == wanted).sum())
        count += len(wanted)
    return loss / count, right / count
