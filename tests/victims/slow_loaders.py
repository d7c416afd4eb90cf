"""Loaders of all kinds for `holdfast validate --benchmark`: one that waits, one whose workers hang, one whose workers die."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Waiting(Dataset[Any]):
    """Each sample waits a little, in its transform."""

    def __init__(self) -> None:
        self.transform = self.slowly

    def slowly(self, value: Any) -> Any:
        time.sleep(0.01)
        return value

    def __len__(self) -> int:
        return 400

    def __getitem__(self, place: int) -> Any:
        return self.transform(self.get(place))

    def get(self, place: int) -> Any:
        return torch.full((3, 64, 64), float(place))


class Hanging(Waiting):
    def get(self, place: int) -> Any:
        if get_worker_info() is not None and place == 9:
            time.sleep(1000)  # where a worker stands still
        return super().get(place)


class Dying(Waiting):
    def get(self, place: int) -> Any:
        if get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().get(place)


class Raising(Waiting):
    def get(self, place: int) -> Any:
        if place == 7:
            raise KeyError("lost")
        return super().get(place)


def waits() -> Any:
    """Workers help it."""
    print("what a factory prints is not the answer")
    return DataLoader(Waiting(), batch_size=4, shuffle=True)


def hangs() -> Any:
    """A worker of it stands still."""
    return DataLoader(Hanging(), batch_size=4, num_workers=2)


def dies() -> Any:
    """A worker of it is killed."""
    return DataLoader(Dying(), batch_size=4, num_workers=1)


def raises() -> Any:
    """A sample of it cannot be loaded."""
    return DataLoader(Raising(), batch_size=4, num_workers=1)
