"""A loader worker is killed: by the kernel for memory, by a decoder that crashes, by a person."""

from __future__ import annotations

import os
import signal

from torch.utils.data import get_worker_info

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.context import FaultContext


class WorkerKilled(Fault):
    """SIGKILL to the worker that reads next."""

    code = "worker-killed"
    description = "a loader worker is killed (SIGKILL)"
    expected = Expected(findings=("loader-stall",), causes=("worker-died",), survivable=True)
    needs = ("workers",)

    def sample(self, indices: list[int], context: FaultContext) -> None:
        """The training process itself is left alone."""
        if get_worker_info() is None:
            raise CannotHappen("the batches are read in the training process")
        os.kill(os.getpid(), signal.SIGKILL)
