"""`metric-decline`: several evaluations in a row, each worse than the one before."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.evaluations import IN_A_ROW, clear_fall, is_nothing_yet
from holdfast.detectors.finding import Finding
from holdfast.signals.metric_direction import better
from holdfast.signals.view import SignalView

HELD_OUT = ("val", "valid", "validation", "eval", "test", "dev")


def metric_decline(signals: SignalView, *, in_a_row: int = IN_A_ROW, noise: float = 3.0) -> Finding | None:
    """Look at each metric of held-out data for `in_a_row` evaluations that got worse.

    Three worse ones in a row happen by chance once in 24 times. So the whole decline must also be `noise` times the usual
    step between two evaluations before it, or, where there were too few, a tenth of the value.
    """
    for split, name in signals.metrics():
        way = better(name)
        if way is None or split not in HELD_OUT:
            continue
        steps, values = signals.evaluated(split, name)
        tail = values[-(in_a_row + 1) :] * (1 if way == "higher" else -1)
        if len(tail) <= in_a_row or not np.isfinite(tail).all() or not (np.diff(tail) < 0).all():
            continue
        if is_nothing_yet(values.tolist(), way) or float(tail[0] - tail[-1]) < clear_fall(
            values[:-in_a_row].tolist(), noise=noise
        ):
            continue
        evidence = {
            "onset": int(steps[-in_a_row]),
            "metric": name,
            "split": split,
            "values": values[-(in_a_row + 1) :],
            "best": float(values.max() if way == "higher" else values.min()),
            "best_step": int(steps[int(values.argmax() if way == "higher" else values.argmin())]),
            "in_a_row": in_a_row,
        }
        return Finding("metric-decline", step=int(steps[-1]), evidence=evidence)
    return None
