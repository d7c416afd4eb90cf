"""Data that differs each time it is drawn, and a training that draws it, for the tests of positions in the data."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    Sampler,
)

from holdfast.state.position import Position

SAMPLES, BATCH = 22, 4  # six batches a pass, the last one short


class Augmented(Dataset[torch.Tensor]):
    """Every sample is a little different each time, by all three generators."""

    def __init__(self) -> None:
        self.loaded = 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        index, self.loaded = index % SAMPLES, self.loaded + 1
        return torch.tensor([index, torch.rand(()).item(), np.random.rand(), random.random()], dtype=torch.float64)


class CountingSampler(Sampler[int]):
    """Numbers its passes by itself, and shuffles by that number."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng(self.epoch).permutation(SAMPLES).tolist()
        self.epoch += 1
        return iter(order)


def shuffled(workers: int = 0, data: Callable[[], Any] = Augmented, **options: Any) -> DataLoader[Any]:
    return DataLoader(data(), batch_size=BATCH, shuffle=True, num_workers=workers, **options)


def with_sampler(make: Callable[[], Any], workers: int = 0) -> DataLoader[Any]:
    return DataLoader(Augmented(), batch_size=BATCH, sampler=make(), num_workers=workers)


def seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def train(position: Position[Any], passes: int, *, stop: int | None = None) -> tuple[list[Any], Any]:
    """Draw as a training does, with dropout and more between the batches; what was seen, and the state after `stop` batches."""
    seen: list[Any] = []
    drawn = 0
    for number in range(position.passes, passes):
        sampler = getattr(position.loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(number)
        for batch in position:
            seen.append((number, batch, torch.rand(2), np.random.rand(), random.random()))
            drawn += 1
            if drawn == stop:
                return seen, written(position.state_dict())
        seen.append(("validation", torch.rand(1)))
    return seen, None


def written(state: Any) -> Any:
    """The state after it went through a file, read as nobody's code is run."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
