"""Train on a loader with two workers until one of them opens a pipe that nobody writes to: hangs_loader.py PIPE."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

BAD_SAMPLE = 45


class Samples(Dataset[torch.Tensor]):
    def __init__(self, pipe: Path) -> None:
        self.pipe = pipe

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == BAD_SAMPLE:
            return self.read(self.pipe)
        return torch.full((4,), float(index))

    def read(self, path: Path) -> torch.Tensor:
        with path.open("rb") as file:
            return torch.frombuffer(file.read(), dtype=torch.float32)


def main(pipe: Path) -> None:
    os.mkfifo(pipe)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for batch in DataLoader(Samples(pipe), batch_size=4, num_workers=2, prefetch_factor=1):
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
