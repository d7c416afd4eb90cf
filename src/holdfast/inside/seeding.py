"""`holdfast.seed`: one call that makes a training compute the same again, as far as Python and torch allow."""

from __future__ import annotations

import contextlib
import os
import random
from dataclasses import dataclass

import numpy as np
import torch

_WORKSPACE = ":4096:8"  # cuBLAS adds in a fixed order only with a workspace of its own


@dataclass(frozen=True, slots=True)
class Seeded:
    """What was set, what could not be, and what it costs; printed, it says so."""

    seed: int
    deterministic: bool
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = [f"seeded with {self.seed}: random, numpy, torch on all devices; loader workers take theirs from it"]
        if self.deterministic:
            said.append("deterministic kernels: often a few per cent slower, some operations several times")
        said += [f"not done: {what}" for what in self.missing]
        return "\n".join(said)


def seed(number: int, *, deterministic: bool = True) -> Seeded:
    """Seed every generator, loader workers included, and ask torch for deterministic kernels.

    Call it before the model and the loaders are made. A kernel that has no deterministic form warns and runs on. Measure what
    it costs your own training with `holdfast repro --cost`.
    """
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)  # all devices; a DataLoader draws the seed of its workers from it
    missing = []
    if deterministic:
        missing = ask_for_determinism()
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        missing.append("the order of sets of text (start Python with PYTHONHASHSEED=0)")
    return Seeded(number, deterministic, tuple(missing))


def ask_for_determinism() -> list[str]:
    """Deterministic kernels wherever there are some; what could not be had, in words."""
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
