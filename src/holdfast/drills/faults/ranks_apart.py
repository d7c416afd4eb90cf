"""One rank's weights are not the others': an update that only it skipped, a load that only it made."""

from __future__ import annotations

import torch

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class RanksApart(Fault):
    """The second rank's weights grow by a part of themselves; `strength` is that part."""

    code = "ranks-apart"
    description = "the weights of the second rank differ from those of the first"
    expected = Expected(findings=("rank-divergence",), causes=("updates-not-shared",))
    needs = ("ranks",)
    rank = 1
    strength = 0.05

    def update(self, context: FaultContext) -> None:
        """Between two steps."""
        with torch.no_grad():
            for group in context.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(1.0 + self.strong)
