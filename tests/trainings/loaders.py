"""Kinds of loaders: loaders.py OUT workers|persistent|iterable|endless|list."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from story import Story, classifier, digits
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Slow(Dataset):
    def __init__(self, seconds: float) -> None:
        self.data, self.seconds = digits(70), seconds

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.seconds)
        return self.data[index]


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield from digits(70)


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield from itertools.cycle(digits(70))


def make(kind: str) -> DataLoader:
    if kind == "workers":
        return DataLoader(Slow(0.002), batch_size=16, shuffle=True, num_workers=2)
    if kind == "persistent":
        return DataLoader(Slow(0.0), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    if kind == "iterable":
        return DataLoader(Stream(), batch_size=16)
    if kind == "endless":
        return DataLoader(Endless(), batch_size=16)
    return DataLoader(list(digits(70)), batch_size=16, shuffle=True)


def main(kind: str) -> None:
    story = Story()
    loader = make(kind)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(1 if kind == "endless" else 4):
        for number, (inputs, labels) in enumerate(loader):
            if number == 20:
                break
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            if kind in ("workers", "persistent") and "HOLDFAST_RUN" in os.environ:
                time.sleep(0.06)  # a run of more than a second: the loader is looked at once a second
            story.step(losses=loss, epochs=epoch, samples=len(labels))
    story.save(model)


if __name__ == "__main__":
    main(sys.argv[2])
