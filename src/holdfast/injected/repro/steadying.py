"""What `holdfast repro` holds still in a second pair of runs, to see whether that was the reason: one function each."""

from __future__ import annotations

import datetime
import inspect
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from holdfast.inside.seeding import ask_for_determinism, seed
from holdfast.inside.taps.patches import Patches

_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout", "worker_init_fn")
_NOON = 1_700_000_000.0


def steady_seed(patches: Patches) -> None:
    """Seed all generators before the script does anything, and later those that it makes without a seed."""
    seed(0, deterministic=False)

    def seeded(original: Any) -> Callable[..., Any]:
        return lambda number=None: original(0 if number is None else number)

    patches.replace(np.random, "default_rng", seeded)


def steady_kernels(_patches: Patches) -> None:
    """Deterministic kernels, and one thread: sums are added in one order."""
    ask_for_determinism()
    torch.set_num_threads(1)


def determinism(_patches: Patches) -> None:
    """Deterministic kernels alone, to measure what they cost."""
    ask_for_determinism()


def steady_time(patches: Patches) -> None:
    """A clock that gives the same readings in each run: every look is a millisecond later."""
    ticks = itertools.count()

    def reading(_original: Any) -> Callable[[], float]:
        return lambda: _NOON + next(ticks) / 1000

    class SteadyDate(datetime.datetime):
        """`datetime.now` by the same clock."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> SteadyDate:
            return cls.fromtimestamp(time.time(), tz)

    patches.replace(time, "time", reading)
    patches.replace(time, "time_ns", lambda _original: lambda: int(time.time() * 1e9))
    datetime.datetime = SteadyDate  # type: ignore[misc]


def steady_workers(patches: Patches) -> None:
    """No loader workers: samples are made one after the other, in this process."""

    arguments_of = inspect.signature(DataLoader.__init__)

    def make(original: Any) -> Callable[..., None]:
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            given = {**arguments_of.bind(loader, *args, **kwargs).arguments, "num_workers": 0}
            original(**{name: value for name, value in given.items() if name not in _OF_WORKERS})

        return __init__

    patches.replace(DataLoader, "__init__", make)


STEADYING: dict[str, Callable[[Patches], None]] = {
    "seed": steady_seed,
    "kernels": steady_kernels,
    "determinism": determinism,
    "time": steady_time,
    "workers": steady_workers,
}
