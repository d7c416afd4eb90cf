"""One loader worker is slow: it reads from a slower place, or shares its core with something else."""

from __future__ import annotations

import time

from torch.utils.data import get_worker_info

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class SlowWorker(Fault):
    """The last worker waits before each batch that it reads; `strength` is in seconds."""

    code = "slow-worker"
    description = "one loader worker takes 200 ms longer per batch from then on, or four steps if that is more"
    expected = Expected(findings=("slow-loading",), causes=("one-slow-worker",), survivable=True)
    needs = ("several-workers",)  # one that is alone is a slow loader
    lasting = True
    strength = 0.2
    strength_in_steps = 4.0

    def sample(self, indices: list[int], context: FaultContext) -> None:
        """The others read as before."""
        worker = get_worker_info()
        if worker is not None and worker.id == worker.num_workers - 1:
            time.sleep(self.strong)
