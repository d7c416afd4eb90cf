"""`overfitting`: what was held out gets worse while what is learned from still gets better."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from holdfast.detectors.curves.curve_finding import curve_finding
from holdfast.detectors.curves.shape import Shape
from holdfast.detectors.evaluations import NOTHING_YET, main_metrics
from holdfast.detectors.finding import Finding
from holdfast.signals.curves import HELD_OUT, Curves


def overfitting(
    curves: Curves,
    *,
    at_least: int = 5,
    rise: float = 0.04,
    sigmas: float = 4.0,
    by: float = 0.8,
    still: float = 0.05,
    clear: float = 0.15,
    counts: float = 0.005,
) -> Iterator[Finding]:
    """The validation loss has risen since its best by `rise` of its size and clear of its noise, and stays up.

    Its best lies before `by` of the run; the training loss has fallen since then by `still` of its size, or where the
    rise is `clear`, has at least not risen; four of five of the later values are on the upper side. Info only, where the
    rise is less than `counts` of all that was learned: a loss of 0.03 that became 0.04 is still as good as none. A model that
    has found nothing yet does not overfit.
    """
    val, train = curves.val_loss, curves.train_loss
    if val is None or train is None:
        return
    named = {curve.name: curve.finite() for curve in curves.of("metric", *HELD_OUT) if curve.better == "higher"}
    high = [named[name] for name in main_metrics(named)]
    found = [curve.steps[(curve.values > NOTHING_YET) | (curve.values < 0.0)] for curve in high]
    since = min((float(steps[0]) for steps in found if len(steps)), default=np.inf if high else -np.inf)
    held, learned = Shape(val.since(since)), Shape(train)
    if len(held) < at_least or len(learned) < 3:
        return
    at = held.best_at
    if at > by * (len(held) - 1):
        return
    risen = held.end - held.best
    later = held.smoothed[at + max(1, (len(held) - at) // 2) :]
    needed = rise / 2 if _metric_fell_too(curves) else rise
    if risen < needed * abs(held.best) or risen < sigmas * held.noise / np.sqrt(max(1, len(later))):
        return
    if np.mean(later > held.best + 0.3 * risen) < 0.8:
        return
    then = float(np.interp(held.curve.steps[at], learned.curve.steps, learned.smoothed))
    fallen = then - learned.end
    wanted = still * abs(then) if risen < clear * abs(held.best) else -still * max(abs(then), learned.learned)
    if fallen < wanted:
        return
    yield curve_finding(
        "overfitting",
        held.curve,
        len(held) - 1,
        severity="warning" if risen > counts * max(held.learned, learned.learned) else "info",
        onset=int(held.curve.steps[at]),
        best=held.best,
        best_step=int(held.curve.steps[at]),
        now=held.end,
        train_then=then,
        train_now=learned.end,
    )


def _metric_fell_too(curves: Curves, *, share: float = 0.05) -> bool:
    """Whether the first metric is clearly off its best."""
    for curve in curves.metrics[:1]:
        shape = Shape(curve)
        return len(shape) >= 10 and shape.end - shape.best > max(share * abs(shape.best), 2 * shape.noise)
    return False
