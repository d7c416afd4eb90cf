"""One rank leaves a collective out: a branch that only it takes, a batch that only it does not have."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.scene import Scene

_OPERATIONS = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "barrier", "reduce")


class CollectiveSkipped(Fault):
    """The second rank leaves out the next collective of the script; under DDP, the reduction of one step."""

    code = "collective-skipped"
    what = "the second rank leaves a collective out"
    expected = Expected(
        findings=("collective-stall", "hang", "rank-divergence"),
        causes=("collective-mismatch", "updates-not-shared"),
        survivable=True,
    )
    needs = ("ranks",)
    rank = 1

    def update(self, scene: Scene) -> None:
        """Whichever comes next."""
        model: Any = scene.model
        if isinstance(model, DistributedDataParallel):
            _leave_out_a_reduction(model, scene)
            return
        found = {name: getattr(torch.distributed, name) for name in _OPERATIONS}
        for name, original in found.items():
            setattr(torch.distributed, name, _left_out(original, found))


def _leave_out_a_reduction(model: Any, scene: Scene) -> None:
    def share_again(*_: Any) -> None:
        model.require_backward_grad_sync = True
        hook.remove()

    model.require_backward_grad_sync = False
    hook = scene.optimizer.register_step_post_hook(share_again)


def _left_out(original: Any, found: dict[str, Any]) -> Any:
    @functools.wraps(original)
    def collective(*_: Any, **__: Any) -> None:
        for name, before in found.items():
            setattr(torch.distributed, name, before)

    return collective
