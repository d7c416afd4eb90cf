"""The shape of a curve: its level at the beginning and at the end, its best, its noise, what it has learned."""

from __future__ import annotations

import numpy as np

from holdfast.signals.curves import Curve, Floats

_WINDOW = 20  # a curve is smoothed over a twentieth of its length on either side
_BLOCKS = 2048
_FEW = 12  # points of a curve that is taken as it is


def smooth(values: Floats) -> Floats:
    """Running median over about a tenth of the curve: single outliers are gone. Of a few points each one counts."""
    half = max(1, len(values) // _WINDOW)
    if len(values) < _FEW:
        return values
    if len(values) > 2 * _BLOCKS:  # each point has a window of a tenth of all: a long curve is smoothed block by block
        size = -(-len(values) // _BLOCKS)
        whole = np.pad(values, (0, -len(values) % size), mode="edge").reshape(-1, size)
        return np.repeat(smooth(np.median(whole, axis=1)), size)[: len(values)]
    padded = np.pad(values, half, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)
    smoothed: Floats = np.median(windows, axis=1)
    return smoothed


def noise(values: Floats) -> float:
    """How much neighbouring points differ by chance, as one deviation: a trend does not count."""
    if len(values) < 3:
        return 0.0
    return float(1.4826 * np.median(np.abs(np.diff(values))) / np.sqrt(2.0))


class Shape:
    """One curve of numbers that is better low; one that is better high is turned round."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve.finite()
        self.sign = -1.0 if curve.better == "higher" else 1.0
        self.values = self.sign * self.curve.values
        self.smoothed = smooth(self.values) if len(self.values) else self.values
        self.noise = noise(self.values)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def start(self) -> float:
        """The level at the beginning: before the first twentieth is over it has often fallen already."""
        first = self.values[: max(1, min(3, len(self) // _WINDOW))]
        return float(np.median(first))

    @property
    def end(self) -> float:
        """The level at the end, over a tenth of the curve and at least three points (two of a few)."""
        return float(np.median(self.values[-max(2 if len(self) < _FEW else 3, len(self) // 10) :]))

    @property
    def best_at(self) -> int:
        """Where the smoothed curve was best."""
        return int(np.argmin(self.smoothed))

    @property
    def best(self) -> float:
        """The best level that it held."""
        return float(self.smoothed[self.best_at])

    @property
    def learned(self) -> float:
        """From the beginning to the best."""
        return max(0.0, self.start - self.best)

    @property
    def scale(self) -> float:
        """What a change is compared with: what was learned, or the size of the numbers where nothing was."""
        return max(self.learned, 0.05 * abs(self.start), 1e-12)

    def shown(self, value: float) -> float:
        """A level as the curve has it."""
        return self.sign * value

    def turns(self) -> float:
        """Share of points at which the curve turns round: two thirds for noise, none for a trend."""
        moves = np.sign(np.diff(self.values))
        moves = moves[moves != 0]
        return float(np.mean(moves[1:] != moves[:-1])) if len(moves) > 2 else 0.0
