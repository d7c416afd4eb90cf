"""Levels of a noisy signal: what is usual, how much it scatters, and whether it has risen and stays there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from holdfast.signals.view import Floats

_MEDIAN = 1.2533  # the standard error of a median, in those of a mean


class Usual(NamedTuple):
    """The usual value of a signal and its scatter as one deviation; both hold against single outliers."""

    value: float
    noise: float

    def sigmas(self, value: float) -> float:
        """How far a value lies above the usual, in deviations."""
        return (value - self.value) / self.noise


def middle(values: Floats) -> float:
    """The median, the upper one of two; `numpy.median` takes ten times as long on a few dozen values."""
    half = len(values) // 2
    return float(np.partition(values, half)[half])


def usual(values: Floats) -> Usual:
    """Median, and median deviation as a standard deviation; a signal that does not move gets a small floor."""
    level = middle(values)
    spread = 1.4826 * middle(np.abs(values - level))
    return Usual(level, max(spread, 1e-3 * abs(level), 1e-12))


def usual_of_falling(values: Floats) -> Usual:
    """As `usual`, with the scatter about a line: a signal that moves steadily is not noisy for that."""
    normal, half = usual(values), len(values) // 2
    slope = (middle(values[half:]) - middle(values[:half])) / max(1, len(values) - half)
    line = slope * np.arange(len(values))
    return Usual(normal.value, min(normal.noise, usual(values - line).noise))


def block_medians(values: Floats, size: int) -> Floats:
    """Medians of blocks of `size`, counted from the newest value back, oldest first: levels without the tails."""
    blocks = len(values) // size
    whole = values[len(values) - blocks * size :].reshape(blocks, size)
    medians: Floats = np.median(whole, axis=1)
    return medians


def rise_in_errors(before: Floats, after: Floats) -> float:
    """How far the middle of a signal rose at a known place, in standard errors: what it was before may have been falling."""
    (then, noise), (now, later) = usual_of_falling(before), usual(after)
    return (now - then) / (_MEDIAN * float(np.sqrt(noise**2 / len(before) + later**2 / len(after))))


def began(high: np.ndarray, *, share: float = 0.8) -> int:
    """Index of the first value from which on at least `share` of all values are high; the last index if there is none."""
    counts = np.cumsum(high[::-1])[::-1] / np.arange(len(high), 0, -1)
    places = np.flatnonzero(high & (counts >= share))
    return int(places[0]) if len(places) else len(high) - 1


def coming_back(values: Floats, normal: float) -> bool:
    """Whether a risen signal is on its way down: the newest third lies less than half as high as the oldest."""
    third = max(1, len(values) // 3)
    before, after = middle(values[:third]) - normal, middle(values[-third:]) - normal
    return after < 0.5 * before
