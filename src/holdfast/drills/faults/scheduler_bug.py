"""A schedule that jumps and stays there: a warm-up that begins again in the middle, steps counted as epochs."""

from __future__ import annotations

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext
from holdfast.drills.injection.lr_override import LearningRateOverride


class SchedulerBug(Fault):
    """Set the learning rate before every update, so that going back to an earlier state does not take it away."""

    code = "scheduler-bug"
    description = "the learning rate is 100 times too large from one step on"
    expected = Expected(
        findings=(
            *("non-finite-loss", "non-finite-weights", "loss-divergence", "gradient-explosion", "metric-collapse"),
            *("not-learning", "loss-spike"),
        ),
        causes=("setting-changed", "learning-rate-too-high"),
        survivable=True,
        by_loss=True,
    )
    lasting = True
    on_every_rank = True
    strength = 100.0

    def __init__(self, strength: float | None = None) -> None:
        super().__init__(strength)
        self._rate = LearningRateOverride(self.strong)

    def gradients(self, context: FaultContext) -> None:
        """Before each update, past any schedule."""
        self._rate.put_on(context)
