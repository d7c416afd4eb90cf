"""One rank of several is killed."""

from __future__ import annotations

import os
import signal

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class RankKilled(Fault):
    """SIGKILL to the second rank: the first is left in a collective that never ends, or is ended by the launcher."""

    code = "rank-killed"
    description = "the second rank is killed (SIGKILL)"
    expected = Expected(
        findings=("process-died", "collective-stall"),
        causes=("killed-from-outside", "another-rank-first", "dead-rank"),
        survivable=True,
    )
    needs = ("ranks",)
    rank = 1

    def update(self, context: FaultContext) -> None:
        """Between two steps."""
        os.kill(os.getpid(), signal.SIGKILL)
