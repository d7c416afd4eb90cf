"""The card has no memory left: another process took it, or a batch is larger than the others."""

from __future__ import annotations

import torch

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.context import FaultContext


class GpuOom(Fault):
    """The process may have no more of the card than it has; the next step that needs more gets the error."""

    code = "gpu-oom"
    description = "GPU memory runs out: an allocation fails"
    expected = Expected(
        findings=("gpu-out-of-memory",),
        causes=("part-of-the-card", "micro-batch-too-large"),
        survivable=True,
    )
    needs = ("gpu",)
    strength = 1.0  # times of what is taken, that it may have

    def update(self, context: FaultContext) -> None:
        """The cache goes first, so that the next step has to ask."""
        device = next((parameter.device for parameter in context.model.parameters() if parameter.is_cuda), None)
        if device is None:
            raise CannotHappen("no part of the model is on a GPU")
        torch.cuda.empty_cache()
        if torch.cuda.max_memory_allocated(device) <= self.strong * torch.cuda.memory_reserved(device):
            raise CannotHappen("a step fits into the memory that is held between two steps")
        total = torch.cuda.get_device_properties(device).total_memory
        share = self.strong * torch.cuda.memory_reserved(device) / total
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), device)
