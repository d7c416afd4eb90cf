"""How long a held-out metric has not got better: what early stopping asks. Not told by itself: a plateau is no trouble."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.metric_decline import HELD_OUT
from holdfast.signals.metric_direction import better
from holdfast.signals.view import SignalView


def metric_plateau(signals: SignalView, *, at_least: int = 2, metric: str | None = None) -> Finding | None:
    """Count the evaluations since the best one, for the metric of that name or the first whose direction is known."""
    for split, name in signals.metrics():
        way = better(name)
        if way is None or split not in HELD_OUT or metric not in (None, name):
            continue
        steps, values = signals.evaluated(split, name)
        score = np.where(np.isfinite(values), values if way == "higher" else -values, -np.inf)
        best = int(score.argmax())
        since = len(values) - 1 - best
        if since < at_least:
            return None
        evidence = {
            "metric": name,
            "split": split,
            "evaluations": since,
            "best": float(values[best]),
            "best_step": int(steps[best]),
        }
        return Finding("loss-plateau", step=int(steps[-1]), severity="info", evidence=evidence)
    return None
