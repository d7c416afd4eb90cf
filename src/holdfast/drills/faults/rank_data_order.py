"""One rank orders the data differently: a seed from its own clock, an old version of the script on one machine."""

from __future__ import annotations

from typing import Any

from holdfast.drills.fault import CannotHappen, Expected, Fault, NotHere
from holdfast.drills.injection.context import FaultContext


class RankDataOrder(Fault):
    """The third rank's sampler has another seed."""

    code = "rank-data-order"
    description = "the third rank draws its samples in another order"
    expected = Expected(findings=("ranks-differ",), causes=("sampler-differs",), survivable=True)
    needs = ("ranks", "loader")
    from_start = True
    rank = 2

    def loader(self, arguments: dict[str, Any], context: FaultContext) -> None:
        """Before the first epoch."""
        sampler = arguments.get("sampler")
        if sampler is None:
            raise NotHere("no loader has a sampler")
        if not hasattr(sampler, "num_replicas") or not hasattr(sampler, "seed"):
            raise CannotHappen("the data is not dealt out by a DistributedSampler")
        sampler.seed += 1 + context.random.randrange(1000)
