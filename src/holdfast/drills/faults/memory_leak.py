"""Memory of the host leaks away: the graph of each step is kept, as `losses.append(loss)` does."""

from __future__ import annotations

from typing import Any

import torch

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class MemoryLeak(Fault):
    """Keep what the model gives out, and with it its graph; beside it as much as a larger model's graph would hold."""

    code = "memory-leak"
    description = "the graph of every step is kept in memory"
    expected = Expected(findings=("host-memory-growth",), causes=("graph-kept-alive", "host-memory-leak"))
    lasting = True
    strength = 2.0  # MB a step

    def __init__(self, strength: float | None = None) -> None:
        super().__init__(strength)
        self._kept: list[Any] = []

    def output(self, output: Any, context: FaultContext) -> Any:
        """Nothing changes but the memory."""
        self._kept.append((output, torch.ones(int(self.strong * 2**18))))
        return output
