"""The learning rate jumps to a hundred times itself: a typo in a schedule, a restart with another setting."""

from __future__ import annotations

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext


class LearningRateTimes100(Fault):
    """Multiply every group's learning rate once."""

    code = "lr-x100"
    description = "the learning rate is multiplied by 100"
    expected = Expected(
        findings=(
            *("non-finite-loss", "non-finite-weights", "loss-divergence", "gradient-explosion", "metric-collapse"),
            *("not-learning", "loss-spike"),
        ),
        causes=("setting-changed", "learning-rate-too-high"),
        survivable=True,
        by_loss=True,
    )
    on_every_rank = True
    strength = 100.0

    def update(self, context: FaultContext) -> None:
        """Between two steps."""
        context.scale_learning_rates(self.strong)
