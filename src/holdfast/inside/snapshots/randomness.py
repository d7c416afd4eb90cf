"""The random number generators of the process: read without moving them, and set again."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch


def read_randomness(gpus: Iterable[int]) -> dict[str, Any]:
    """The state of all generators in plain containers: torch on the host and on these GPUs, numpy, Python."""
    legacy = np.random.get_state(legacy=False)
    inner = legacy["state"]
    return {
        "torch": torch.get_rng_state(),
        "cuda": {index: torch.cuda.get_rng_state(index) for index in gpus},
        "numpy": {
            "kind": legacy["bit_generator"],
            "key": torch.from_numpy(inner["key"].astype(np.int64)),
            "pos": int(inner["pos"]),
            "has_gauss": int(legacy["has_gauss"]),
            "gauss": float(legacy["gauss"]),
        },
        "python": random.getstate(),
    }


def set_randomness(saved: dict[str, Any]) -> None:
    """Set all generators as they were; those of a GPU that is not here are left out."""
    torch.set_rng_state(saved["torch"])
    for index, state in saved["cuda"].items():
        if torch.cuda.is_available() and index < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, index)
    held = saved["numpy"]
    inner = {"key": held["key"].numpy().astype(np.uint32), "pos": held["pos"]}
    np.random.set_state({"bit_generator": held["kind"], "state": inner, "has_gauss": held["has_gauss"], "gauss": held["gauss"]})
    version, numbers, gauss = saved["python"]
    random.setstate((version, tuple(numbers), gauss))
