"""Turn gathered numbers into rows of the tables. On a GPU this happens a step or so after the step itself."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from holdfast.inside.gradients.host import PerParameter
from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.inside.observers import step_columns as at
from holdfast.inside.observers.evaluations import LossSum
from holdfast.inside.observers.modules import ModuleTime, seconds_between
from holdfast.signals.recorder import Recorder
from holdfast.signals.schema import MISSING, MISSING_INT

_BAD_STEPS_IN_FULL = 100  # after so many steps with bad gradients in a row, their parameters are written on sampled steps only


class StepTable:
    """Writes the rows of one training."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._others_non_finite = 0
        self._bad_in_a_row = 0
        self._rates: dict[tuple[int, int], tuple[float, float]] = {}
        self._steps = recorder.table("steps")

    def step(self, row: list[float | int], metrics: StepMetrics, times: list[ModuleTime] | None) -> None:
        """Fill in what was gathered and append the row of a step, and what was sampled in it."""
        if metrics.loss is not None:
            row[at.LOSS] = metrics.loss
        if metrics.lr is not None:
            row[at.LR] = metrics.lr
        self._fill_gradients(row, metrics)
        if metrics.scale is not None:
            row[at.SCALE] = metrics.scale or MISSING
        if metrics.found_inf:
            row[at.SKIPPED] = 1
        if metrics.update_ratio is not None:
            row[at.UPDATE_RATIO] = metrics.update_ratio
        self._steps.append(row)
        if metrics.stats is not None and metrics.stats.each is not None:
            self._parameters(int(row[at.STEP]), metrics)
        for change in metrics.untrained:
            why = self.recorder.strings.code(change.why)
            self.recorder.table("untrained").append((int(row[at.STEP]), change.name, why, change.position, change.of))
        if times:
            self._modules(int(row[at.STEP]), times)

    def other_step(self, metrics: StepMetrics) -> None:
        """Take in the step of an optimizer that is not the main one: bad gradients count, wherever they are."""
        if metrics.stats is not None:
            self._others_non_finite += metrics.stats.non_finite

    def rates(self, step: int, optimizer: int, groups: list[dict[str, Any]]) -> None:
        """Write the learning rate and weight decay of each group that changed; one that lies on a GPU is left out."""
        for number, group in enumerate(groups):
            rate, decay = group.get("lr"), group.get("weight_decay")
            if type(rate) is not float or type(decay) is not float:
                rate, decay = _number(rate), _number(decay)
            known = self._rates.get((optimizer, number))
            if known is None or not (_same(known[0], rate) and _same(known[1], decay)):
                self._rates[(optimizer, number)] = (rate, decay)
                self.recorder.table("groups").append((step, optimizer, number, rate, decay))

    def evaluation(self, step: int, epoch: int | None, name: str, split: str, value: float, samples: int | None) -> None:
        """Write one metric of an evaluation."""
        code = self.recorder.strings.code
        when = MISSING_INT if epoch is None else epoch
        count = MISSING_INT if samples is None else samples
        self.recorder.table("evaluations").append((step, when, code(split), code(name), value, count, time.time()))

    def losses(self, step: int, epoch: int | None, sums: dict[str, LossSum]) -> None:
        """Write the validation losses of a phase of evaluation."""
        for name, total in sums.items():
            if total.samples:
                self.evaluation(step, epoch, name, "val", float(total.total) / total.samples, total.samples)

    def _fill_gradients(self, row: list[float | int], metrics: StepMetrics) -> None:
        stats = metrics.stats
        if stats is not None:
            norm, bad = stats.norm, stats.non_finite
        elif metrics.norm is not None:  # the script's own: which gradient is bad is not known
            norm, bad = metrics.norm, 0 if math.isfinite(metrics.norm) else 1
        else:
            return
        row[at.GRAD_NORM] = norm / (metrics.grad_scale or 1.0)
        row[at.NON_FINITE] = bad + self._others_non_finite
        self._others_non_finite = 0
        if metrics.weights is not None:
            row[at.WEIGHT_NORM] = float(np.sqrt(np.square(metrics.weights).sum()))

    def _parameters(self, step: int, metrics: StepMetrics) -> None:
        assert metrics.stats is not None and metrics.stats.each is not None
        each: PerParameter = metrics.stats.each
        self._bad_in_a_row = self._bad_in_a_row + 1 if metrics.stats.non_finite else 0
        if metrics.weights is None and self._bad_in_a_row > _BAD_STEPS_IN_FULL:
            return
        scale = metrics.grad_scale or 1.0
        known = metrics.weights if metrics.weights is not None and len(metrics.weights) == len(each.names) else MISSING
        columns = (step, each.names, each.norms / scale, each.maxima / scale, known, each.non_finite)
        self.recorder.table("parameters").extend(columns)

    def _modules(self, step: int, times: list[ModuleTime]) -> None:
        codes = self.recorder.strings.codes
        modules, stages, starts, ends, gpu, resident = zip(*times, strict=True)
        lengths = [MISSING if (s := seconds_between(*pair)) is None else s for pair in zip(starts, ends, strict=True)]
        allocated = [MISSING_INT if size is None else size for size in gpu]
        columns = (codes(modules), codes(stages), lengths, allocated, resident)
        self.recorder.table("modules").extend((step, *(np.array(values) for values in columns), time.time()))


def _same(one: float, other: float) -> bool:
    return one == other or one is other  # missing is a NaN


def _number(value: Any) -> float:
    """A setting as a number; one that lies on a GPU is not waited for."""
    if isinstance(value, (int, float)) or getattr(value, "is_cpu", False):
        return float(value)
    return MISSING
