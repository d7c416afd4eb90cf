"""What all peers train: the same network on the same digits, and how long a step of it takes."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from torch import nn

sys.path.append(str(Path(__file__).parents[1] / "drill_trainings"))
from digits_data import begin, keep_pace, split

EPOCHS, BATCH, RATE, MOMENTUM = 8, 32, 0.02, 0.9
__all__ = ["BATCH", "EPOCHS", "MOMENTUM", "RATE", "Clock", "begin", "keep_pace", "make", "split"]


def make(width: int = 320) -> nn.Sequential:
    """A fully connected network."""
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


class Clock:
    """How long a step takes: the median, without the first fifty."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def step(self) -> None:
        """A step has ended."""
        self._ends.append(time.perf_counter())

    def end(self, accuracy: float) -> None:
        """Print what came out."""
        steps = [after - before for before, after in zip(self._ends[50:], self._ends[51:], strict=False)]
        print(json.dumps({"accuracy": accuracy, "step_ms": 1000 * statistics.median(steps) if steps else None}), flush=True)
