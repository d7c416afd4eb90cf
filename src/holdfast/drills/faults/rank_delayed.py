"""One rank is slower than the others, and all wait for it: a card that throttles, a node with something else on it."""

from __future__ import annotations

import time

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class RankDelayed(Fault):
    """The second rank waits in every step; `strength` is in seconds."""

    code = "rank-delayed"
    description = "the second rank takes 100 ms longer per step from then on"
    expected = Expected(findings=("straggler",), causes=("uneven-work", "card-throttled", "slow-storage"), survivable=True)
    needs = ("ranks",)
    lasting = True
    rank = 1
    strength = 0.1

    def update(self, context: FaultContext) -> None:
        """Between two steps."""
        time.sleep(self.strong)
