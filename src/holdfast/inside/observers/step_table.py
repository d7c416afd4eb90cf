"""Turn step metrics into rows of the tables. On a GPU this happens a step or two after the step itself."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast.inside.gradients.host import PerParameter
from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.inside.observers import step_columns as at
from holdfast.inside.observers.modules import ModuleTime, seconds_between
from holdfast.signals.recorder import Recorder
from holdfast.signals.schema import MISSING, MISSING_INT

_FEW = 8  # rows that are written one by one
_MAX_BAD_IN_FULL = 100  # steps in a row with bad gradients; after that their parameters are written on sampled steps only


class StepTable:
    """Writes the rows of one training."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._others_non_finite = 0
        self._bad_in_a_row = 0
        self._rates: dict[tuple[int, int], tuple[float, float]] = {}  # LR and weight decay by optimizer and group
        self._steps = recorder.table("steps")
        names = [column.name for column in self._steps.table.columns]  # of many ranks most leave some out
        self._columns = [at.COLUMNS[name] for name in names] if recorder.thinning is not None else None
        self._last: list[float | int] | None = None  # the newest row, if it was not written

    def steps(self, finished: Sequence[tuple[list[float | int], StepMetrics, list[ModuleTime] | None]]) -> None:
        """Append the rows of some steps, all together, and then the rows of what was sampled in them."""
        kept, all_are = [], self.recorder.thinning is None
        for row, metrics, _ in finished:
            self._fill(row, metrics)
            self._last = None if all_are or self._is_kept(row) else row
            if self._last is None:
                kept.append(row)
        self._append(kept)
        for row, metrics, times in finished:
            if times or metrics.stats is not None or metrics.untrained:
                self._sampled(int(row[at.STEP]), metrics, times)

    def _fill(self, row: list[float | int], metrics: StepMetrics) -> None:
        if metrics.loss is not None:
            row[at.LOSS] = metrics.loss
        if metrics.lr is not None:
            row[at.LR] = metrics.lr
        if metrics.scale is not None:
            row[at.SCALE] = metrics.scale or MISSING
        if metrics.found_inf:
            row[at.SKIPPED] = 1
        if metrics.update_ratio is not None:
            row[at.UPDATE_RATIO] = metrics.update_ratio
        stats = metrics.stats
        norm = metrics.norm if stats is None else stats.norm
        if norm is None:
            return
        bad = int(norm - norm != 0.0) if stats is None else stats.non_finite  # without them it is unknown which
        row[at.GRAD_NORM] = norm / (metrics.grad_scale or 1.0)
        row[at.NON_FINITE] = bad + self._others_non_finite
        self._others_non_finite = 0
        if metrics.weights is not None:
            row[at.WEIGHT_NORM] = float(np.sqrt(np.square(metrics.weights).sum()))

    def _sampled(self, step: int, metrics: StepMetrics, times: list[ModuleTime] | None) -> None:
        if metrics.stats is not None and metrics.stats.each is not None:
            self._parameters(step, metrics)
        for change in metrics.untrained:
            why = self.recorder.strings.code(change.why)
            self.recorder.table("untrained").append((step, change.name, why, change.position, change.of))
        if times:
            self._modules(step, times)

    def close(self) -> None:
        """The training is over: its last step is a row in any case."""
        if self._last is not None:
            self._append([self._last])

    def _append(self, rows: list[list[float | int]]) -> None:
        """A column at a time: many rows cost little more than a few."""
        if self._columns is not None:
            rows = [[row[index] for index in self._columns] for row in rows]
        if len(rows) < _FEW:
            for row in rows:
                self._steps.append(row)
        else:
            self._steps.extend([np.array(column) for column in zip(*rows, strict=True)])

    def _is_kept(self, row: list[float | int]) -> bool:
        thinning = self.recorder.thinning
        assert thinning is not None
        bad = row[at.NON_FINITE] > 0 or row[at.SKIPPED] == 1 or not (math.isfinite(row[at.LOSS]) or row[at.LOSS] is MISSING)
        return thinning.ended(int(row[at.STEP]), row[at.STEP_SECONDS]) or bad

    def other_step(self, metrics: StepMetrics) -> None:
        """Count the non-finite gradients of an optimizer that is not the main one."""
        if metrics.stats is not None:
            self._others_non_finite += metrics.stats.non_finite

    def rates(self, step: int, optimizer: int, groups: list[dict[str, Any]]) -> None:
        """Write LR and weight decay of each parameter group where they changed; values on a GPU are not read."""
        for number, group in enumerate(groups):
            lr, decay = group.get("lr"), group.get("weight_decay")
            if type(lr) is not float or type(decay) is not float:
                lr, decay = _as_float(lr), _as_float(decay)
            last = self._rates.get((optimizer, number))
            if last is None or not (_same(last[0], lr) and _same(last[1], decay)):
                self._rates[(optimizer, number)] = (lr, decay)
                self.recorder.table("groups").append((step, optimizer, number, lr, decay))

    def evaluation(self, step: int, epoch: int | None, name: str, split: str, value: float, samples: int | None) -> None:
        """Write one metric of an evaluation."""
        code = self.recorder.strings.code
        when = MISSING_INT if epoch is None else epoch
        count = MISSING_INT if samples is None else samples
        self.recorder.table("evaluations").append((step, when, code(split), code(name), value, count, time.time()))

    def _parameters(self, step: int, metrics: StepMetrics) -> None:
        assert metrics.stats is not None and metrics.stats.each is not None
        each: PerParameter = metrics.stats.each
        self._bad_in_a_row = self._bad_in_a_row + 1 if metrics.stats.non_finite else 0
        if not metrics.has_each_weight and self._bad_in_a_row > _MAX_BAD_IN_FULL:
            return
        scale = metrics.grad_scale or 1.0
        all_there = metrics.has_each_weight and metrics.weights is not None and len(metrics.weights) >= len(each.names)
        weights = metrics.weights[: len(each.names)] if all_there else MISSING
        columns = (step, each.names, each.norms / scale, each.maxima / scale, weights, each.non_finite)
        self.recorder.table("parameters").extend(columns)

    def _modules(self, step: int, times: list[ModuleTime]) -> None:
        codes = self.recorder.strings.codes
        modules, stages, starts, ends, gpu, resident = zip(*times, strict=True)
        seconds = [MISSING if (s := seconds_between(*pair)) is None else s for pair in zip(starts, ends, strict=True)]
        allocated = [MISSING_INT if size is None else size for size in gpu]
        columns = (codes(modules), codes(stages), seconds, allocated, resident)
        self.recorder.table("modules").extend((step, *(np.array(values) for values in columns), time.time()))


def _same(a: float, b: float) -> bool:
    return a == b or a is b  # MISSING is a NaN


def _as_float(value: Any) -> float:
    """A setting as a float; MISSING for a tensor on a GPU, which would have to be waited for."""
    if isinstance(value, (int, float)) or getattr(value, "is_cpu", False):
        return float(value)
    return MISSING
