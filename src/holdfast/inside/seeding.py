"""`holdfast.seed`: one call that makes a training reproducible, as far as Python and torch allow."""

from __future__ import annotations

import contextlib
import os
import random
from dataclasses import dataclass

import numpy as np
import torch

_WORKSPACE = ":4096:8"  # cuBLAS is deterministic only with a fixed workspace


@dataclass(frozen=True, slots=True)
class Seeded:
    """What was set, what could not be, and what it costs, as printed."""

    seed: int
    deterministic: bool
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"seeded with {self.seed}: random, numpy, torch on all devices; loader workers are seeded from torch"]
        if self.deterministic:
            lines.append("deterministic kernels: often a few per cent slower, some operations several times")
        lines += [f"not done: {what}" for what in self.missing]
        return "\n".join(lines)


def seed(number: int, *, deterministic: bool = True) -> Seeded:
    """Seed every generator, loader workers included, and request deterministic kernels.

    Call it before the model and the loaders are created. An operation without a deterministic kernel warns and runs anyway.
    `holdfast repro --cost` measures what it costs your training.
    """
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)  # all devices; a DataLoader draws the seed of its workers from it
    settle_vector_math()
    missing = []
    if deterministic:
        missing = ask_for_determinism()
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        missing.append("the order of sets of text (start Python with PYTHONHASHSEED=0)")
    return Seeded(number, deterministic, tuple(missing))


def settle_vector_math() -> None:
    """Make the first call of MKL's vector functions (sqrt, exp, …) here, on one thread.

    Where two threads make it together, one of them may get its half to four digits only: one in a few hundred processes then
    makes another first update with Adam than the next one does, and a restarted training ends with other weights.
    """
    torch.sqrt(torch.ones(1, device="cpu"))


def ask_for_determinism() -> list[str]:
    """Request deterministic kernels; returns what could not be set, as text."""
    missing = []
    initialized = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if initialized and "CUBLAS_WORKSPACE_CONFIG" not in os.environ:
        missing.append("cuBLAS in a fixed order (the GPU was in use already: call this before the first CUDA operation)")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _WORKSPACE)
    with contextlib.suppress(Exception):  # a build without cuDNN
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    return missing
