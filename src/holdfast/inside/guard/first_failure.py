"""Tells the first bad update of a training that nobody guards: what its batch, its variables and its weights held then.

An update that is not finite spoils the weights, and afterwards nobody can say what began it. Loaded when it happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.signals.recorder import Recorder


class FirstFailure:
    """Looks once, at the first bad update."""

    def __init__(
        self,
        recorder: Recorder,
        models: Callable[[], list[nn.Module]],
        name_of: Callable[[int], str],
        in_half: Callable[[], bool],
    ) -> None:
        self._recorder, self._models, self._name_of, self._in_half = recorder, models, name_of, in_half
        self._told = False

    def saw(self, step: int, metrics: StepMetrics, *, at_once: bool) -> None:
        """An update, before it is made, or when its numbers have come from a device."""
        if self._told:
            return
        loss, stats, norm = metrics.loss, metrics.stats, metrics.norm
        loss_is_bad = loss is not None and not math.isfinite(loss)
        is_bad = stats.non_finite > 0 if stats is not None else norm is not None and not math.isfinite(norm)
        if metrics.scale is not None or not (loss_is_bad or is_bad):
            return
        self._told = True
        self._tell(step, metrics, "non-finite-loss" if loss_is_bad else "non-finite-gradient", at_once=at_once)

    def _tell(self, step: int, metrics: StepMetrics, code: str, *, at_once: bool) -> None:
        from holdfast.inside.guard.failure_context import FailureContext
        from holdfast.inside.guard.report import Report
        from holdfast.inside.observers.batches import Batches

        recorder = self._recorder
        folder = recorder.recording.path / "batches"  # batches are not kept: what the loop's variables hold is looked at
        failure_context = FailureContext(Batches(), folder=folder, models=self._models, run_later=recorder.run_later)
        report = Report(recorder.run.journal, recorder.recording.rank, self._name_of, failure_context, self._in_half)
        report.bad_update(step, code, metrics, [], was_skipped=False, at_once=at_once)
