"""`metric-collapse` over a whole run: a metric lost what it had gained, and stayed down."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.detectors.curves.found import found
from holdfast.detectors.curves.shape import Shape
from holdfast.detectors.finding import Finding
from holdfast.signals.curves import Curves


def collapse(curves: Curves, *, at_least: int = 8, lost: float = 0.65, drop: float = 0.25) -> Iterator[Finding]:
    """At the end the metric is `lost` of the way back to where it began, and `drop` of its best is gone."""
    for curve in curves.metrics[:3]:
        shape = Shape(curve)
        if len(shape) < at_least or curve.better != "higher":
            continue
        gone = shape.end - shape.best
        gained = max(shape.start - shape.best, 0.0)
        if gone < lost * gained or gone < drop * abs(shape.best) or gone < 6 * shape.noise:
            continue
        low = shape.smoothed > shape.best + 0.5 * gone
        onset = len(low) - 1
        while onset > 0 and low[onset - 1]:
            onset -= 1
        if onset <= shape.best_at:
            continue
        yield found(
            "metric-collapse",
            shape.curve,
            len(shape) - 1,
            severity="critical",
            onset=int(shape.curve.steps[onset]),
            best=shape.shown(shape.best),
            best_step=int(shape.curve.steps[shape.best_at]),
            now=shape.shown(shape.end),
        )
        return
