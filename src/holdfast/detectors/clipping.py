"""`clipping-every-step` and `clipping-never`: a clipping limit that does not fit the gradients."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.signals.view import Floats, SignalView, measured


def clipping_every_step(signals: SignalView, *, window: int = 256, share: float = 0.95, times: float = 2.0) -> Finding | None:
    """The norm is `times` the limit or more on nearly every step: the limit is then a hidden learning rate.

    A limit close to the usual norm cuts about half of the steps, which many good recipes do.
    """
    norms_and_limits = _norms_and_limits(signals, window)
    if (
        norms_and_limits is None
        or np.mean(norms_and_limits[0] > norms_and_limits[1]) < share
        or np.median(norms_and_limits[0] / norms_and_limits[1]) < times
    ):
        return None
    return _finding("clipping-every-step", signals, *norms_and_limits)


def clipping_never(signals: SignalView, *, window: int = 2048, share: float = 0.2) -> Finding | None:
    """The largest norm in a long time stays below `share` of the limit: it would not stop an explosion early."""
    norms_and_limits = _norms_and_limits(signals, window)
    if norms_and_limits is None or float(np.max(norms_and_limits[0] / norms_and_limits[1])) > share:
        return None
    return _finding("clipping-never", signals, *norms_and_limits)


def _norms_and_limits(signals: SignalView, window: int) -> tuple[Floats, Floats] | None:
    norm, limit = signals.column("grad_norm", window), signals.column("clip_norm", window)
    if len(limit) < window or not measured(limit)[-1] or len(norm) < window:
        return None
    both = measured(norm) & measured(limit) & np.isfinite(norm) & (limit > 0)
    return (norm[both], limit[both]) if both.sum() >= window // 2 else None


def _finding(code: str, signals: SignalView, norm: Floats, limit: Floats) -> Finding:
    middle = float(np.median(norm))
    evidence = {
        "limit": float(limit[-1]),
        "normal": middle,
        "clipped_fraction": float(np.mean(norm > limit)),
        "suggested": [2 * middle, 5 * middle],
    }
    return Finding(code, step=signals.step, severity="info", evidence=evidence)
