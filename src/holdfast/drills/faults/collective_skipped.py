"""One rank leaves a collective out: a branch that only it takes, a batch that only it does not have."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext

_OPERATIONS = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "barrier", "reduce")


class CollectiveSkipped(Fault):
    """The second rank skips the next collective of the script; under DDP, the reduction of one step."""

    code = "collective-skipped"
    description = "the second rank skips a collective"
    expected = Expected(
        findings=("collective-stall", "hang", "rank-divergence"),
        causes=("collective-mismatch", "updates-not-shared"),
        survivable=True,
    )
    needs = ("ranks",)
    rank = 1

    def update(self, context: FaultContext) -> None:
        """Whichever comes next."""
        model: Any = context.model
        if isinstance(model, DistributedDataParallel):
            _skip_a_reduction(model, context)
            return
        originals = {name: getattr(torch.distributed, name) for name in _OPERATIONS}
        for name, original in originals.items():
            setattr(torch.distributed, name, _skipped(original, originals))


def _skip_a_reduction(model: Any, context: FaultContext) -> None:
    def share_again(*_: Any) -> None:
        model.require_backward_grad_sync = True
        hook.remove()

    model.require_backward_grad_sync = False
    hook = context.optimizer.register_step_post_hook(share_again)


def _skipped(original: Any, originals: dict[str, Any]) -> Any:
    @functools.wraps(original)
    def collective(*_: Any, **__: Any) -> None:
        for name, before in originals.items():
            setattr(torch.distributed, name, before)

    return collective
