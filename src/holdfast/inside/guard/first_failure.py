"""Report the first bad update of an unguarded training: what its batch, variables and weights held.

Such an update corrupts the weights, and afterwards nobody can tell the cause. The heavy imports wait until it happens.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.signals.recorder import Recorder


class FirstFailure:
    """Reports once, at the first bad update."""

    def __init__(
        self,
        recorder: Recorder,
        models: Callable[[], list[nn.Module]],
        name_of: Callable[[int], str],
        in_half: Callable[[], bool],
    ) -> None:
        self._recorder, self._models, self._name_of, self._in_half = recorder, models, name_of, in_half
        self._is_reported = False

    def saw(self, step: int, metrics: StepMetrics, *, at_once: bool) -> None:
        """Check an update before it is applied, or when its metrics have arrived from a device."""
        bad_gradient = metrics.has_bad_gradient and metrics.scale is None  # that a scaler skips those is ordinary
        if not self._is_reported and (metrics.has_bad_loss or bad_gradient):
            self._is_reported = True
            code = "non-finite-loss" if metrics.has_bad_loss else "non-finite-gradient"
            self._report(step, metrics, code, at_once=at_once)

    def _report(self, step: int, metrics: StepMetrics, code: str, *, at_once: bool) -> None:
        from holdfast.inside.guard.failure_context import FailureContext
        from holdfast.inside.guard.report import Report
        from holdfast.inside.observers.batches import Batches

        recorder = self._recorder
        folder = recorder.recording.path / "batches"  # no batches are kept: the loop's variables are inspected instead
        failure_context = FailureContext(Batches(), folder=folder, models=self._models, run_later=recorder.run_later)
        report = Report(recorder.run.journal, recorder.recording.rank, self._name_of, failure_context, self._in_half)
        report.bad_update(step, code, metrics, [], was_skipped=False, at_once=at_once)
