"""The numbers of one column of a log, in bounded memory: a column that gets too long is thinned."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from holdfast.logs.roles import Role
from holdfast.signals.curves import Curve

POINTS = 100_000  # a column has at most twice as many
_BLOCK = 64
_NEW = 4096  # points that wait to be thinned
_FAR = 6.0  # deviations from the median of a block: what is so far out is kept


class Column:
    """Steps, epochs and values, in the order in which they were written."""

    __slots__ = ("_epochs", "_limit", "_settled", "_steps", "_values", "thinned")

    def __init__(self, *, points: int = POINTS) -> None:
        self._steps, self._epochs, self._values = array("q"), array("d"), array("d")
        self._limit = 2 * points
        self._settled = 0  # points that are thinned already; those behind them are not
        self.thinned = 1  # of so many points about one is kept

    def __len__(self) -> int:
        return len(self._values)

    def add(self, step: int, value: float, epoch: float = math.nan) -> None:
        """One more point."""
        self._steps.append(step)
        self._epochs.append(epoch)
        self._values.append(value)
        if len(self._values) - self._settled >= _NEW and (self.thinned > 1 or len(self._values) >= self._limit):
            self.settle()
            if len(self._values) >= self._limit:
                self.thin()

    def thin(self) -> None:
        """Let go of every other point, but of none that stands out; of those to come as well."""
        self.settle()
        self._keep(0, 1)
        self.thinned *= 2

    def settle(self) -> None:
        """Thin the newest points as much as those before them, so that a long run has them at even distances."""
        self._keep(self._settled, self.thinned.bit_length() - 1)

    def _keep(self, start: int, times: int) -> None:
        values = np.array(self._values[start:], np.float64)
        kept = np.arange(len(values))
        for _ in range(times):
            kept = kept[kept_points(values[kept])]
        for name in ("_steps", "_epochs", "_values") if times else ():
            old = getattr(self, name)
            tail = np.frombuffer(old[start:], old.typecode)[kept]
            del old[start:]
            old.frombytes(tail.tobytes())
        self._settled = len(self._values)

    def points(self) -> Iterator[tuple[int, float]]:
        """Steps and values, as they were written."""
        return zip(self._steps, self._values, strict=True)

    def stands_still(self) -> bool:
        """Whether all points have the same step."""
        return len(self._steps) > 1 and min(self._steps) == max(self._steps)

    def counted(self) -> Column:
        """The same points, one step apart."""
        column = Column()
        for step, value in enumerate(self._values):
            column.add(step, value)
        return column

    def set_epochs(self, steps: npt.NDArray[np.int64], epochs: npt.NDArray[np.float64]) -> None:
        """Say at which steps (in order) which epoch was: a point has the epoch of the newest step before it."""
        place = np.searchsorted(steps, np.array(self._steps, np.int64), side="right") - 1
        self._epochs = array("d", np.where(place >= 0, epochs[np.maximum(place, 0)], epochs[0]).tolist())

    def curve(self, name: str, role: Role) -> Curve:
        """One value a step: the last one, as a resumed run writes steps again."""
        self.settle()
        steps, values = np.array(self._steps, np.int64), np.array(self._values, np.float64)
        epochs = np.array(self._epochs, np.float64)
        measured = _measured(values)
        steps, values, epochs = steps[measured], values[measured], epochs[measured]
        single, from_the_end = np.unique(steps[::-1], return_index=True)
        order = len(steps) - 1 - from_the_end
        known_epochs = epochs[order] if np.isfinite(epochs[order]).any() else None
        return Curve(
            name.strip(), single, values[order], role=role.role, split=role.split, better=role.better, epochs=known_epochs
        )


def kept_points(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Every other point, the points far from their neighbours, and each first one that is not finite.

    The rest keeps the noise that the whole has; the extremes alone would make a quiet curve look wild.
    """
    kept = np.zeros(len(values), np.bool_)
    kept[::2] = True
    kept[-1:] = True
    bad = ~np.isfinite(values)
    kept |= bad & ~np.concatenate(([False], bad[:-1]))
    whole = len(values) // _BLOCK * _BLOCK
    blocks = np.where(bad, np.nan, values)[:whole].reshape(-1, _BLOCK)
    usable = np.isfinite(blocks).any(axis=1)
    middle = np.nanmedian(blocks[usable], axis=1, keepdims=True)
    away = np.abs(blocks[usable] - middle)
    usual = 1.4826 * np.nanmedian(away, axis=1, keepdims=True)
    far = np.zeros(blocks.shape, np.bool_)
    far[usable] = away > _FAR * np.maximum(usual, 1e-9)
    kept[:whole] |= far.ravel()
    return kept


def _measured(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which points were measured: tables of pandas write NaN where nothing was, and then numbers stand at even distances."""
    finite = np.flatnonzero(np.isfinite(values))
    apart = np.diff(finite)
    if len(finite) >= 3 and apart[0] > 1 and (apart == apart[0]).all() and not np.isinf(values).any():
        return np.isfinite(values)
    return np.ones(len(values), np.bool_)
