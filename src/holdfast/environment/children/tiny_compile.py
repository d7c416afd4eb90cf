"""Compiles a small function and compares it with the same one not compiled."""

from __future__ import annotations

import sys
import time
from typing import Any

from holdfast.environment.child_output import tell


def main(device: str) -> None:
    """Tell how long it took."""
    import torch

    tell("torch imported")

    def work(x: Any) -> Any:
        return (x * 2 + x.sin()).sum()

    torch.manual_seed(0)
    x = torch.randn(64, 64, device=device)
    expected = work(x).item()
    tell("run without compiling")
    begun = time.perf_counter()
    result = torch.compile(work)(x)
    seconds = time.perf_counter() - begun
    if abs(result.item() - expected) > 1e-3 * max(1.0, abs(expected)):
        raise SystemExit(f"Error: the compiled function gives {result.item()} instead of {expected}")
    tell("compiled", seconds=seconds)


if __name__ == "__main__":
    main(sys.argv[1])
