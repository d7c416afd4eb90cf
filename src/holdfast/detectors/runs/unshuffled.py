"""`unshuffled-data`: the loss goes through the same ups and downs in every pass over the data."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.runs.fields import fields_of, label_field, of_split
from holdfast.signals.run_view import RunView
from holdfast.signals.view import Floats, measured


def unshuffled_data(
    run: RunView, *, passes: int = 4, batches: int = 16, same: float = 0.6, sigmas: float = 5.0, repeated: int = 2
) -> Finding | None:
    """Passes begin with one and the same batch (`repeated` more times), or their losses go together, batch by batch.

    The losses of one pass go with those of the pass before (correlation above `same`).
    With batches in a new order each time that is chance: four passes of 16 batches reach 0.15. Where the ups and downs have
    an order of their own (`sigmas` above that of chance, see `_order`), or a batch holds few of all labels, the data is sorted
    by something; else it only comes in the same order each time: info.
    """
    if (repeats := max((one.repeats for one in run.inputs), default=0)) >= repeated:
        return _finding(run, _labels_in_order(run), {"repeats": repeats + 1})
    matrix = _passes(run, batches)
    if matrix is None or len(matrix) < passes:
        return None
    matrix = matrix[-8:]
    between = float(np.mean([_together(a, b) for a, b in pairwise(matrix)]))
    if between < same:
        return None
    order = _order(matrix.mean(axis=0))
    is_sorted = order > sigmas or _labels_in_order(run)
    return _finding(run, is_sorted, {"same_each_pass": between, "order": order, "batches": matrix.shape[1] + 1})


def _finding(run: RunView, is_sorted: bool, evidence: dict[str, float]) -> Finding:
    severity = "warning" if is_sorted else "info"
    return Finding("unshuffled-data", step=run.step, severity=severity, evidence={"onset": 0, **evidence, "sorted": is_sorted})


def _labels_in_order(run: RunView, *, few: float = 0.4) -> bool:
    """Batches hold a few of the labels that there are, where any mixture would hold most of them."""
    learned = fields_of(of_split(run, "train"))
    rows = learned.get(label_field(learned) or "", [])
    if len(rows) < 3 or not rows[-1].entropy > 0.0:
        return False
    held_out = [one.distinct for one in run.inputs if one.split == "val" and one.field == rows[-1].field]
    could = min(max(float(np.exp(rows[-1].entropy)), *held_out, 0.0), 0.6 * rows[-1].samples)
    return could >= 3.0 and float(np.median([row.distinct for row in rows])) < few * could


def _passes(run: RunView, batches: int) -> Floats | None:
    """Whole passes of the same length, a row each, without their trend and their last batch (it may be a small one)."""
    epoch, loss, rate = run.column("epoch"), run.column("loss"), run.column("lr")
    if not len(epoch) or not measured(epoch).all() or not np.isfinite(loss).all():
        return None
    starts = np.flatnonzero(np.diff(epoch))[:] + 1
    lengths = np.diff(starts)
    if not len(lengths):
        return None
    length = int(lengths[-1])
    chosen = [start for start, one in zip(starts, lengths, strict=False) if one == length]
    if length < batches or any(_moves(rate[start : start + length]) for start in chosen):
        return None
    return np.array([_level(loss[start : start + length - 1]) for start in chosen])


def _moves(rate: Floats, *, by: float = 0.2) -> bool:
    """Whether the learning rate itself goes up and down within the pass."""
    return bool(np.ptp(rate) > by * np.max(np.abs(rate))) if np.isfinite(rate).all() else False


def _level(losses: Floats) -> Floats:
    place = np.arange(len(losses))
    level: Floats = losses - np.polyval(np.polyfit(place, losses, 1), place)
    return level


def _order(profile: Floats) -> float:
    """How far the ups and downs of a pass are from those of batches in any order, in deviations (Ljung-Box)."""
    count = len(profile)
    lags = min(20, count // 3)
    squares = (_together(profile[:-lag], profile[lag:]) ** 2 / (count - lag) for lag in range(1, lags + 1))
    return float((count * (count + 2) * sum(squares) - lags) / np.sqrt(2 * lags))


def _together(first: Floats, other: Floats) -> float:
    size = float(np.std(first) * np.std(other))
    return float(np.mean((first - first.mean()) * (other - other.mean())) / size) if size > 0 else 0.0
