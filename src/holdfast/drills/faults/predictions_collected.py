"""Evaluations collect what the model predicted, and never let it go."""

from __future__ import annotations

from typing import Any

import torch

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class PredictionsCollected(Fault):
    """Keep some memory for each batch that is evaluated."""

    code = "predictions-collected"
    description = "memory grows with every evaluated batch"
    expected = Expected(findings=("host-memory-growth",), causes=("results-in-memory",))
    needs = ("evaluation",)
    lasting = True
    from_start = True
    strength = 8.0  # MB a batch

    def __init__(self, strength: float | None = None) -> None:
        super().__init__(strength)
        self._kept: list[torch.Tensor] = []

    def held_out_batch(self, batch: Any, context: FaultContext) -> Any:
        """Nothing changes but the memory."""
        self._kept.append(torch.ones(int(self.strong * 2**18)))
        return batch
