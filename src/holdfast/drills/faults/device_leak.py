"""Memory of the GPU leaks away: tensors of earlier steps are still held."""

from __future__ import annotations

import torch

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class DeviceLeak(Fault):
    """Keep some more tensors on the device after every step."""

    code = "device-leak"
    description = "after every step some tensors stay on the GPU"
    expected = Expected(findings=("gpu-memory-growth",), causes=("graph-kept-alive",))
    needs = ("gpu",)
    lasting = True
    strength = 4.0  # MB a step

    def __init__(self, strength: float | None = None) -> None:
        super().__init__(strength)
        self._kept: list[torch.Tensor] = []

    def update(self, context: FaultContext) -> None:
        """Nothing changes but the memory."""
        device = next(context.model.parameters()).device
        self._kept.append(torch.ones(int(self.strong * 2**18), device=device))
