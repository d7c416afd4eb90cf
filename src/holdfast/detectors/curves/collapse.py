"""`metric-collapse` and `metric-decline` over a whole run: metrics lost what they had gained, or a good part of it.

A log may hold hundreds of noisy points of many metrics, so their smoothed levels are judged, and half of them must agree.
`detectors/evaluations.py` judges a few evaluations one by one, as live runs and `checkpoints choose` have them. On the labelled
logs that judge finds the same collapses, with two false alarms more.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.detectors.curves.curve_finding import curve_finding
from holdfast.detectors.curves.shape import Shape
from holdfast.detectors.finding import Finding
from holdfast.signals.curves import Curves


def collapse(
    curves: Curves,
    *,
    at_least: int = 8,
    lost: float = 0.65,
    drop: float = 0.25,
    decline: float = 0.4,
    floor: float = 0.02,
    sigmas: float = 3.0,
) -> Iterator[Finding]:
    """At the end a metric is `lost` of the way back to where it began, and `drop` of its best is gone.

    A `decline`: that share of its best is gone, whatever it began with. Either counts if half of all metrics show it, and for
    metrics that were above `floor` for a while: what never rose cannot fall.
    """
    shapes = [Shape(curve) for curve in curves.metrics if curve.better == "higher"]
    shapes = [shape for shape in shapes if len(shape) >= at_least]
    fallen = [
        shape for shape in shapes if -shape.best > floor and _gone(shape) >= max(drop * abs(shape.best), sigmas * shape.noise)
    ]
    collapsed = [shape for shape in fallen if _gone(shape) >= lost * max(shape.start - shape.best, 0.0)]
    declined = [shape for shape in fallen if _gone(shape) >= decline * abs(shape.best)]
    for code, severity, which in (("metric-collapse", "critical", collapsed), ("metric-decline", "warning", declined)):
        finding = next((one for shape in which if (one := _finding(code, severity, shape)) is not None), None)
        if finding is not None and 2 * len(which) >= len(shapes):
            yield finding
            return


def _gone(shape: Shape) -> float:
    return shape.end - shape.best


def _finding(code: str, severity: str, shape: Shape) -> Finding | None:
    low = shape.smoothed > shape.best + 0.5 * _gone(shape)
    onset = len(low) - 1
    while onset > 0 and low[onset - 1]:
        onset -= 1
    if onset <= shape.best_at:
        return None
    return curve_finding(
        code,
        shape.curve,
        len(shape) - 1,
        severity=severity,
        onset=int(shape.curve.steps[onset]),
        best=shape.shown(shape.best),
        best_step=int(shape.curve.steps[shape.best_at]),
        now=shape.shown(shape.end),
    )
