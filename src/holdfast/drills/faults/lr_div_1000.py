"""The learning rate falls to a thousandth of itself: a schedule with a wrong unit, a typo. Nothing is learned from there on.

It is reported, not repaired: a script may lower its rate as it likes, and no harm is done that could be undone.
"""

from __future__ import annotations

from holdfast.drills.fault import Expected, Fault
from holdfast.drills.injection.context import FaultContext
from holdfast.drills.injection.lr_override import LearningRateOverride


class LearningRateThousandth(Fault):
    """Divide every group's learning rate, and keep it there, whatever a schedule says."""

    code = "lr-div-1000"
    description = "the learning rate is divided by 1000, and stays there"
    expected = Expected(
        findings=("loss-plateau", "not-learning", "underfitting"),
        causes=("setting-changed", "learning-rate-too-low", "schedule-ended"),
        by_loss=True,
    )
    lasting = True
    on_every_rank = True
    strength = 1000.0

    def __init__(self, strength: float | None = None) -> None:
        super().__init__(strength)
        self._rate = LearningRateOverride(1.0 / self.strong)

    def gradients(self, context: FaultContext) -> None:
        """Before each update, past any schedule."""
        self._rate.put_on(context)
