"""A long curve in few points for a plot: thinned so that no spike is lost, smoothed on request."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_DIGITS = 6
Array = npt.NDArray[Any]


def thinned(
    positions: Array, values: Array, *, low: float | None = None, high: float | None = None, points: int = 800, smooth: int = 0
) -> dict[str, list[Any]]:
    """A curve in about so many points: of each stretch its lowest and its highest value, and the first and the last.

    `bad` are the positions of values that are not finite, `smooth` the running mean over so many rows.
    """
    finite = np.isfinite(values)
    bad, x, y = positions[~finite], positions[finite], values[finite].astype(np.float64)
    mean = running_mean(y, smooth) if smooth > 1 else None
    first = np.searchsorted(x, low, "left") if low is not None else 0
    last = np.searchsorted(x, high, "right") if high is not None else len(x)
    first, last = max(0, int(first) - 1), min(len(x), int(last) + 1)  # a point beyond each side: the line leaves the plot
    chosen = first + lowest_and_highest(y[first:last], points)
    answer = {"x": _plain(x[chosen]), "y": _plain(y[chosen]), "bad": _plain(bad[:: max(1, len(bad) // 200)])}
    if mean is not None:
        evenly = np.unique(np.linspace(first, max(first, last - 1), min(points, max(1, last - first))).astype(int))
        answer |= {"smooth_x": _plain(x[evenly]), "smooth_y": _plain(mean[evenly])} if last > first else {}
    return answer


def lowest_and_highest(values: Array, points: int) -> Array:
    """Which values to keep, at most about `points` of them."""
    count = len(values)
    if count <= points:
        return np.arange(count)
    size = -(-count // max(1, points // 2))
    whole = count // size * size
    blocks = values[:whole].reshape(-1, size)
    starts = np.arange(0, whole, size)
    kept = [starts + blocks.argmin(axis=1), starts + blocks.argmax(axis=1), np.array([0, count - 1])]
    if whole < count:
        kept.append(whole + np.array([values[whole:].argmin(), values[whole:].argmax()]))
    return np.unique(np.concatenate(kept))


def running_mean(values: Array, window: int) -> Array:
    """The mean over the last `window` values, fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - window)
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))


def _plain(values: Array) -> list[Any]:
    """Numbers of a few digits, so that the answer is short."""
    if values.dtype.kind == "i":
        return list(values.tolist())
    if len(values) and abs(float(values[0])) > 1e8:  # times: milliseconds count
        return [round(value, 3) for value in values.tolist()]
    return [float(f"{value:.{_DIGITS}g}") for value in values.tolist()]
