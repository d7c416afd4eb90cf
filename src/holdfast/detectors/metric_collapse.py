"""`metric-collapse`: a metric of held-out data that was good is suddenly worth nothing (0.64 -> 0.002)."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.evaluations import collapsed
from holdfast.detectors.finding import Finding
from holdfast.detectors.levels import usual
from holdfast.detectors.loss_divergence import jumped_rate
from holdfast.detectors.metric_decline import found_nothing, judged, others_improve
from holdfast.detectors.weights_jump import jumped_weights
from holdfast.signals.view import Floats, SignalView, Steps


def metric_collapse(signals: SignalView, *, share: float = 0.1, active_after: int = 3, lost: float = 0.9) -> Finding | None:
    """Compare the newest value with the best so far: `share` of it, or `lost` of the way back to the first evaluation.

    Batch normalisation at a large learning rate gives single evaluations near chance in good health. So the training loss
    must be up too, or the next evaluation must be as bad; a loss that is twice not finite has collapsed, whatever came before.
    And not half of the other metrics may have got better meanwhile (see `others_improve`).
    """
    for split, name, way in judged(signals):
        steps, values = signals.evaluated(split, name)
        finite = np.isfinite(values)
        if way == "lower" and not finite[-2:].any() and finite[:-2].any():
            return _finding(signals, split, name, steps, values, ~finite, way)
        if len(values) <= active_after or not finite.all():
            continue
        bad = np.array(collapsed(values.tolist(), way, share=share, lost=lost))
        sure = bool(bad[-1] and (bad[-2] or _loss_is_up(signals, int(steps[-1])))) and not found_nothing(signals, split)
        if sure and not others_improve(signals, split, name, since=int(steps[np.flatnonzero(~bad)[-1]])):
            return _finding(signals, split, name, steps, values, bad, way)
    return None


def _loss_is_up(signals: SignalView, step: int) -> bool:
    _, loss = signals.until(step).last("loss", 256)
    loss = loss[np.isfinite(loss)]
    if len(loss) < 84:
        return False
    return usual(loss[:-20]).sigmas(float(np.median(loss[-20:]))) > 4


def _finding(signals: SignalView, split: str, name: str, steps: Steps, values: Floats, bad: np.ndarray, way: str) -> Finding:
    good = int(np.flatnonzero(~bad)[-1])
    best = int(np.nanargmax(values) if way == "higher" else np.nanargmin(values))
    evidence = {
        "onset": int(steps[good]) + 1,  # somewhere between the last good evaluation and the first bad one
        "metric": name,
        "split": split,
        "value": float(values[-1]),
        "before": float(values[good]),
        "best": float(values[best]),
        "best_step": int(steps[best]),
        **jumped_rate(signals, int(steps[good + 1]), since=int(steps[good])),
        **jumped_weights(signals, int(steps[good]), int(steps[good + 1])),
    }
    return Finding("metric-collapse", step=int(steps[-1]), severity="critical", evidence=evidence)
