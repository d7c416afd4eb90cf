"""All symptoms that show in whole curves, and the order in which they are looked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.detectors.curves.collapse import collapse
from holdfast.detectors.curves.divergence import divergence
from holdfast.detectors.curves.flat import flat, never_off_the_ground
from holdfast.detectors.curves.non_finite import non_finite
from holdfast.detectors.curves.oscillation import oscillation
from holdfast.detectors.curves.overfitting import overfitting
from holdfast.detectors.curves.spikes import spikes
from holdfast.detectors.curves.too_good import too_good
from holdfast.detectors.finding import Finding
from holdfast.signals.curves import Curves

CurveDetector = Callable[[Curves], Iterator[Finding]]
OF_CURVES: tuple[CurveDetector, ...] = (
    non_finite,
    divergence,
    collapse,
    overfitting,
    flat,
    never_off_the_ground,
    oscillation,
    spikes,
    too_good,
)
TOO_SHORT = 5  # points; of fewer nothing can be said


def look_at(curves: Curves) -> list[Finding]:
    """What the curves show."""
    detectors = OF_CURVES if curves.points >= TOO_SHORT else (non_finite,)
    return [finding for detector in detectors for finding in detector(curves)]
