"""`gradient-explosion`: the gradient norm left its own history, stays there, and the loss goes up with it."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.levels import Usual, began, coming_back, middle, usual
from holdfast.detectors.loss_divergence import learning_rates
from holdfast.signals.view import Floats, SignalView

_PLAYING = 10.0  # times the largest norm so far, where the loss is no measure: see loss_divergence.py


def gradient_explosion(
    signals: SignalView, *, window: int = 128, active_after: int = 64, times: float = 10.0, sustained: int = 10
) -> Finding | None:
    """Compare the last `sustained` norms with the window before them.

    Norms are judged as logarithms and must stand above everything that the run has ever had: leaving a plateau or a warm
    restart raises them a hundredfold in good health. For the same reason a norm that grows while the loss falls or stays is
    no explosion.
    """
    steps, norm = signals.last("grad_norm", window + sustained)
    if len(norm) < active_after + sustained:
        return None
    past, now = norm[:-sustained], norm[-sustained:]
    level = middle(now)
    if level < times * middle(past):  # the common case
        return None
    past = past[np.isfinite(past) & (past > 0)]
    if len(past) < active_after or not (np.isfinite(now) & (now > 0)).all():
        return None
    normal = usual(np.log(past))
    high = norm > times * np.exp(normal.value)
    if np.mean(high[-sustained:]) < 0.8 or normal.sigmas(float(np.log(level))) < 6 or coming_back(now, 0.0):
        return None
    place = began(high)
    onset = int(steps[place])
    ever = signals.highest("grad_norm", before=onset)
    if level < (_PLAYING if signals.plays else 2) * ever or not _loss_is_up(signals, onset):
        return None
    evidence = {
        "onset": onset,
        "norm": level,
        "normal": float(np.exp(normal.value)),
        "times": level / float(np.exp(normal.value)),
        "highest_before": ever,
        **_first_step(norm[max(0, place - 1) : place + 1]),
        **learning_rates(signals, onset),
    }
    return Finding("gradient-explosion", step=int(steps[-1]), severity="critical", evidence=evidence)


def _first_step(norms: Floats) -> dict[str, float]:
    """How far the norm went from one step to the next where it began."""
    if len(norms) < 2 or not (np.isfinite(norms) & (norms > 0)).all():
        return {}
    return {"step_before": float(norms[0]), "first": float(norms[1])}


def _loss_is_up(signals: SignalView, since: int) -> bool:
    steps, loss = signals.last("loss", 128)
    before, after = _finite(loss[steps < since]), _finite(loss[steps >= since])
    if len(before) < 32 or not len(after):
        return False
    normal: Usual = usual(before[-64:])
    return normal.sigmas(middle(after)) > 3


def _finite(values: Floats) -> Floats:
    return values[np.isfinite(values)]
