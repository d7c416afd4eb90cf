"""`unshuffled-data`: the loss goes through the same ups and downs in every pass over the data."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.signals.run_view import RunView
from holdfast.signals.view import Floats, measured


def unshuffled_data(
    run: RunView, *, passes: int = 4, batches: int = 16, same: float = 0.6, sigmas: float = 5.0
) -> Finding | None:
    """The losses of one pass go with those of the pass before, batch by batch (correlation above `same`).

    With batches in a new order each time that is chance: four passes of 16 batches reach 0.15. Where the ups and downs have
    an order of their own (`sigmas` above that of chance, see `_order`), the data is sorted by something; else it only comes
    in the same order each time: a remark.
    """
    matrix = _passes(run, batches)
    if matrix is None or len(matrix) < passes:
        return None
    matrix = matrix[-8:]
    between = float(np.mean([_together(a, b) for a, b in pairwise(matrix)]))
    if between < same:
        return None
    order = _order(matrix.mean(axis=0))
    is_sorted = order > sigmas
    evidence = {
        "onset": 0,
        "same_each_pass": between,
        "order": order,
        "batches": matrix.shape[1] + 1,
        "sorted": is_sorted,
    }
    return Finding("unshuffled-data", step=run.step, severity="warning" if is_sorted else "info", evidence=evidence)


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


def _together(one: Floats, other: Floats) -> float:
    size = float(np.std(one) * np.std(other))
    return float(np.mean((one - one.mean()) * (other - other.mean())) / size) if size > 0 else 0.0
