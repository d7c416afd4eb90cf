"""`non-finite-weights`: no step gives finite numbers any more, so the model itself is dead."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.loss_divergence import jumped_rate
from holdfast.signals.view import SignalView, measured


def non_finite_weights(signals: SignalView, *, in_a_row: int = 10, memory: int = 4096) -> Finding | None:
    """Count the newest steps whose loss or gradients were not finite, or whose update was skipped without a scaler.

    One bad batch gives one such step, a gradient scaler that looks for its scale a few, and their losses are finite.
    """
    if not _dead(signals, 1).any():  # the common case
        return None
    recent = _dead(signals, in_a_row)
    if len(recent) < in_a_row or not recent.all():
        return None
    dead = _dead(signals, memory)
    alive = np.flatnonzero(~dead)
    start = int(alive[-1]) + 1 if len(alive) else 0
    steps = signals.column("step", memory)
    onset = int(steps[start])
    evidence = {"onset": onset, "steps_in_a_row": len(dead) - start, "loss": _last_loss(signals), **jumped_rate(signals, onset)}
    return Finding("non-finite-weights", step=int(steps[-1]), severity="critical", evidence=evidence)


def _dead(signals: SignalView, count: int) -> np.ndarray:
    rows = min(count, len(signals))
    loss, bad = signals.column("loss", count), signals.column("non_finite", count)
    skipped, scale = signals.column("skipped", count), signals.column("scale", count)
    nothing = np.zeros(rows, bool)
    broken = measured(loss) & ~np.isfinite(loss) if len(loss) else nothing
    without_scaler = ~measured(scale) if len(scale) else ~nothing
    corrupted = (bad > 0) | (skipped == 1) if len(bad) and len(skipped) else nothing
    return broken | (corrupted & without_scaler)


def _last_loss(signals: SignalView) -> float | None:
    loss = signals.column("loss", 1)
    return float(loss[-1]) if len(loss) and measured(loss)[-1] else None
