"""`loss-oscillation`: a curve that swings from one evaluation to the next and goes nowhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from holdfast.detectors.curves.curve_finding import curve_finding
from holdfast.detectors.curves.shape import Shape
from holdfast.detectors.finding import Finding
from holdfast.signals.curves import HELD_OUT, Curve, Curves


def oscillation(
    curves: Curves, *, at_least: int = 20, swing: float = 0.15, share: float = 0.06, turns: float = 0.45, drift: float = 1.0
) -> Iterator[Finding]:
    """From one point to the next the later two thirds move by `swing` of their size, and by `share` of all that was learned.

    Over all they have drifted by less than `drift` such moves.

    Looked at are curves with one point for an evaluation or an epoch; the loss of single steps is noisy by nature.
    """
    for curve in _calm_by_nature(curves):
        shape = Shape(curve)
        if len(shape) < at_least:
            continue
        later = shape.values[len(shape) // 3 :]
        move = float(np.median(np.abs(np.diff(later))))
        level = float(np.median(np.abs(later)))
        reach = max(shape.learned, float(np.ptp(shape.smoothed)), 1e-12)
        drifted = abs(float(np.median(later[: len(later) // 2])) - float(np.median(later[len(later) // 2 :])))
        if move < swing * level or move < share * reach or shape.turns() < turns or drifted > drift * move:
            continue
        yield curve_finding(
            "loss-oscillation",
            shape.curve,
            len(shape) - 1,
            onset=int(shape.curve.steps[len(shape) // 3]),
            median_move=move,
            level=level,
            turns=shape.turns(),
        )
        return


def _calm_by_nature(curves: Curves) -> list[Curve]:
    val = curves.val_loss
    return [curve for curve in (val, *curves.metrics[:1]) if curve is not None and curve.split in HELD_OUT]
