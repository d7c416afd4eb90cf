"""One rank has another seed for dropout and augmentation than the others agree on."""

from __future__ import annotations

import torch

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class RankSeed(Fault):
    """The third rank is seeded differently."""

    code = "rank-seed"
    description = "the third rank is seeded differently: its dropout masks are others"
    expected = Expected(findings=("ranks-differ",), causes=("seed-differs",), survivable=True, info_is_enough=True)
    needs = ("ranks",)
    rank = 2

    def update(self, context: FaultContext) -> None:
        """Between two steps."""
        torch.manual_seed(1_000_000 + context.random.randrange(1_000_000))
