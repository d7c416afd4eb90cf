"""Report the first bad update of an unguarded training: what its batch, variables and weights held.

Such an update corrupts the weights, and afterwards nobody can tell the cause. The heavy imports wait until it happens.
"""

from __future__ import annotations

from typing import Any

from holdfast.inside.gradients.step_metrics import StepMetrics


class FirstFailure:
    """Reports once, at the first bad update; `of_report` are the arguments of a `Report` without batches."""

    def __init__(self, *of_report: Any) -> None:
        self._of_report = of_report
        self._is_reported = False

    def saw(self, step: int, metrics: StepMetrics, *, at_once: bool) -> None:
        """Check an update before it is applied, or when its metrics have arrived from a device."""
        bad_gradient = metrics.has_bad_gradient and metrics.scale is None  # that a scaler skips those is ordinary
        if not self._is_reported and (metrics.has_bad_loss or bad_gradient):
            from holdfast.inside.guard.report import Report

            self._is_reported = True
            code = "non-finite-loss" if metrics.has_bad_loss else "non-finite-gradient"
            Report(*self._of_report).bad_update(step, code, metrics, [], was_skipped=False, at_once=at_once)
