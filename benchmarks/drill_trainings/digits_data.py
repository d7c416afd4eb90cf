"""What the trainings of the course share: the seed, and loaders of digits to learn from and of digits that are held out.

SEED, WORKERS and DEVICE come from the environment, as a script would get them from a cluster's job file.
"""

from __future__ import annotations

import os
import runpy
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

_DATA = Path(__file__).parents[1] / "healthy_trainings/datasets.py"  # not imported: Hugging Face has a module of that name
HELD_OUT = 597
WORKERS = int(os.environ.get("WORKERS", "0"))
DEVICE = os.environ.get("DEVICE", "cpu")
PACE = float(os.environ.get("PACE", "0.01"))
_last = [0.0]


def begin() -> None:
    """One thread, and the seed."""
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ.get("SEED", "0")))


def keep_pace() -> None:
    """Called after each step, which takes 10 ms at least: who watches from outside has no less time than with a larger model."""
    time.sleep(max(0.0, min(PACE, _last[0] + PACE - time.monotonic())))
    _last[0] = time.monotonic()


def split(*shape: int) -> tuple[TensorDataset, TensorDataset]:
    """Pictures of that shape with their labels, around 0: 1,200 to learn from, the others held out."""
    images, labels = runpy.run_path(str(_DATA))["digits"]()
    images = ((images - images.mean()) / images.std()).view(-1, *shape)
    order = torch.randperm(len(images))
    chosen, held_out = order[HELD_OUT:], order[:HELD_OUT]
    return TensorDataset(images[chosen], labels[chosen]), TensorDataset(images[held_out], labels[held_out])


def loaders(batch: int, *shape: int) -> tuple[DataLoader, DataLoader]:
    """Shuffled batches to learn from, and those to evaluate on."""
    train, held_out = split(*shape)
    how = {"num_workers": WORKERS, "persistent_workers": WORKERS > 0}
    return (
        DataLoader(train, batch_size=batch, shuffle=True, drop_last=True, **how),
        DataLoader(held_out, batch_size=200, **how),
    )
