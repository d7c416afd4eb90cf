"""The clock of one machine is wrong by minutes."""

from __future__ import annotations

import time

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class ClockSkew(Fault):
    """The third rank's clock; `strength` is in seconds, ahead or behind by chance."""

    code = "clock-skew"
    description = "the clock of the third rank is 5 minutes off"
    expected = Expected(findings=("ranks-differ",), causes=("clock-differs",), survivable=True, info_is_enough=True)
    needs = ("ranks",)
    from_start = True
    rank = 2
    strength = 300.0

    def update(self, context: FaultContext) -> None:
        """From the first step on."""
        real, ahead = time.time, self.strong * context.random.choice((-1, 1))
        time.time = lambda: real() + ahead
