"""`non-finite-loss`: the loss is NaN or Inf somewhere in the log."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from holdfast.detectors.curves.curve_finding import curve_finding
from holdfast.detectors.finding import Finding
from holdfast.signals.curves import Curve, Curves


def non_finite(curves: Curves) -> Iterator[Finding]:
    """The first NaN or Inf in a loss, how many there are, and whether numbers came back.

    A trainer that leaves NaN out of the log writes 0.0 for the loss; the norm of the gradients then says NaN.
    """
    for curve in (*curves.of("loss", "train"), *curves.of("loss", "val", "test")):
        bad = np.flatnonzero(~np.isfinite(curve.values))
        if len(bad):
            yield _finding("non-finite-loss", curve, bad)
            return
    for curve in curves.of("norm"):
        bad = np.flatnonzero(~np.isfinite(curve.values))
        if len(bad) > max(2, 0.1 * len(curve)):  # a few are what a gradient scaler makes while it looks for its scale
            yield _finding("non-finite-gradient", curve, bad)
            return


def _finding(code: str, curve: Curve, bad: np.ndarray) -> Finding:
    after = curve.values[bad[0] :]
    passed = (
        curve.split != "train" and bool(np.isfinite(after[-1])) and len(bad) < 0.1 * len(curve)
    )  # an evaluation, not the weights
    return curve_finding(
        code,
        curve,
        int(bad[0]),
        severity="info" if passed else "critical",
        onset=int(curve.steps[bad[0]]),
        count=len(bad),
        of=len(curve),
        recovered=bool(np.isfinite(after[-1])),
        before=float(curve.values[bad[0] - 1]) if bad[0] else None,
    )
