"""`loss-spike` in a curve of epochs or of logged steps: it stood out for a few points, and whether it came back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from holdfast.detectors.curves.curve_finding import curve_finding
from holdfast.detectors.curves.shape import Shape
from holdfast.detectors.finding import Finding
from holdfast.signals.curves import Curve, Curves, Floats

_BEFORE = 12  # points that say what was usual


def spikes(
    curves: Curves,
    *,
    sigmas: float = 8.0,
    share: float = 0.15,
    early: int = 5,
    long: int = 5,
    back: float = 0.25,
    held_out: float = 1.6,
) -> Iterator[Finding]:
    """The largest rise of the training loss over the points before it, and whether it came back.

    It stands `sigmas` deviations out of the whole curve's own scatter, and is `share` of all that was learned: what is small
    beside that is of no consequence. Not in the first points, where the loss has no usual level yet. Losses of small
    batches have long tails, so where all are positive they are compared as logarithms. It came back when all but `back` of it was
    gone again. A validation loss may jump by itself at any time: a jump to `held_out` times its level that came back is a note.
    """
    curve = curves.train_loss or curves.val_loss
    largest = _largest(curve, sigmas, share, early, long, back) if curve is not None else None
    if largest is not None:
        yield largest
    elif curves.val_loss is not None and curves.val_loss is not curve:
        largest = _largest(curves.val_loss, sigmas, share, early, long, back)
        if (
            largest is not None
            and largest.evidence["recovered"]
            and largest.evidence["loss"] > held_out * largest.evidence["normal"] > 0
        ):
            yield largest


def _largest(curve: Curve, sigmas: float, share: float, early: int, long: int, back: float) -> Finding | None:
    if len(shape := Shape(curve)) < 3 * early:
        return None
    values, first = shape.values, max(early, len(shape) // 20)
    usual = _before(values)
    rise = values - usual
    out = _deviations(values) if values.min() > 0 else _of_scatter(rise)
    wanted = np.maximum(share * shape.scale, 0.15 * np.abs(usual))
    standing = (np.arange(len(values)) >= first) & (rise > wanted) & (out > sigmas)
    if not standing.any():
        return None
    at = int(np.argmax(np.where(standing, rise, -np.inf)))
    calm = values[at + 1 :] < _calm_again(float(usual[at]), float(values[at]), back)
    within = int(np.argmax(calm)) + 1 if calm.any() else None
    if within is None and len(values) - at < long:
        return None  # it has just happened
    return curve_finding(
        "loss-spike",
        shape.curve,
        at,
        severity="info" if within is not None else "warning",
        onset=int(shape.curve.steps[at]),
        loss=float(values[at]),
        normal=float(usual[at]),
        recovered=within is not None,
        within=within,
    )


def _calm_again(usual: float, peak: float, back: float) -> float:
    """The level under which a spike is over: of a loss that rose a thousandfold, a quarter of that is not."""
    plain = usual + back * (peak - usual)
    return min(plain, usual * (peak / usual) ** back) if usual > 0 else plain


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
