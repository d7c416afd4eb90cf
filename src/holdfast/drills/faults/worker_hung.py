"""A loader worker does not come back: a wait for something that never comes."""

from __future__ import annotations

from torch.utils.data import get_worker_info

from holdfast.drills.fault import CannotHappen, Expected, Fault
from holdfast.drills.injection.as_script import as_script
from holdfast.drills.injection.context import FaultContext

_SOURCE = """
import time


def wait_for_file(seconds):
    time.sleep(seconds)
"""


class WorkerHung(Fault):
    """The worker that reads next sleeps for an hour."""

    code = "worker-hung"
    description = "a loader worker hangs"
    expected = Expected(findings=("loader-stall",), causes=("worker-stuck", "slow-storage"), survivable=True)
    needs = ("workers",)
    strength = 3600.0

    def sample(self, indices: list[int], context: FaultContext) -> None:
        """The training process itself is left alone."""
        if get_worker_info() is None:
            raise CannotHappen("the batches are read in the training process")
        as_script("wait_for_file", _SOURCE, context.folder)(self.strong)
