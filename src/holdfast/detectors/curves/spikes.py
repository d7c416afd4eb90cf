"""`loss-spike` in a curve of epochs or of logged steps: it stood out for a few points, and whether it came back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from holdfast.detectors.curves.found import found
from holdfast.detectors.curves.shape import Shape
from holdfast.detectors.finding import Finding
from holdfast.signals.curves import Curves, Floats

_BEFORE = 12  # points that say what was usual


def spikes(curves: Curves, *, sigmas: float = 8.0, share: float = 0.15, early: int = 5, long: int = 5) -> Iterator[Finding]:
    """The largest rise of the training loss over the points before it, and whether it came back.

    It stands `sigmas` deviations out of the whole curve's own scatter, and is `share` of all that was learned: what is small
    beside that is of no consequence. Not in the first points, where the loss has no usual level yet. Losses of small
    batches have long tails, so where all are positive they are compared as logarithms. A validation loss may jump by
    itself at any time; it counts where there is no training loss.
    """
    curve = curves.train_loss or curves.val_loss
    if curve is None or len(shape := Shape(curve)) < 3 * early:
        return
    values, first = shape.values, max(early, len(shape) // 20)
    usual = _before(values)
    rise = values - usual
    out = _deviations(values) if values.min() > 0 else _of_scatter(rise)
    wanted = np.maximum(share * shape.scale, 0.15 * np.abs(usual))
    standing = (np.arange(len(values)) >= first) & (rise > wanted) & (out > sigmas)
    if not standing.any():
        return
    at = int(np.argmax(np.where(standing, rise, -np.inf)))
    calm = values[at + 1 :] < usual[at] + 0.25 * rise[at]
    back = int(np.argmax(calm)) + 1 if calm.any() else None
    if back is None and len(values) - at < long:
        return  # it has just happened
    yield found(
        "loss-spike",
        shape.curve,
        at,
        severity="info" if back is not None else "warning",
        onset=int(shape.curve.steps[at]),
        loss=float(values[at]),
        usual=float(usual[at]),
        recovered=back is not None,
        within=back,
    )


def _before(values: Floats) -> Floats:
    """The median of the points before each point."""
    padded = np.concatenate([np.full(_BEFORE, values[0]), values[:-1]])
    medians: Floats = np.median(np.lib.stride_tricks.sliding_window_view(padded, _BEFORE), axis=1)
    return medians


def _deviations(values: Floats) -> Floats:
    logs = np.log(values)
    return _of_scatter(logs - _before(logs))


def _of_scatter(rise: Floats) -> Floats:
    """Each rise in deviations of all of them; a curve without any scatter gets a small one."""
    scatter = 1.4826 * float(np.median(np.abs(rise - np.median(rise))))
    return rise / max(scatter, 1e-3 * float(np.abs(rise).max()), 1e-12)
