"""Reading takes long from some step on: a network file system that is overloaded, a disk that others use."""

from __future__ import annotations

import time

from torch.utils.data import get_worker_info

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class SlowLoader(Fault):
    """Wait before each batch is read, for so long that every step has to wait; `strength` is in seconds a batch."""

    code = "slow-loader"
    description = "reading a batch takes 50 ms longer from then on, or three steps if that is more"
    expected = Expected(
        findings=("slow-loading",),
        causes=("slow-storage", "too-few-workers", "images-decoded-large", "heavy-transforms"),
        survivable=True,
    )
    needs = ("loader",)
    lasting = True
    strength = 0.05
    strength_in_steps = 3.0  # workers read while the training computes: less than a step is not waited for

    def sample(self, indices: list[int], context: FaultContext) -> None:
        """Workers read beside each other: each waits for as many batches as there are workers."""
        worker = get_worker_info()
        time.sleep(self.strong * (worker.num_workers if worker is not None else 1))
