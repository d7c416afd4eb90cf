"""`loss-divergence` after a jump of the learning rate: where the place is known, a small rise of a noisy loss is enough."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.levels import middle, rise_in_errors
from holdfast.detectors.loss_divergence import learning_rates
from holdfast.signals.view import SignalView

_WINDOW = 256  # steps after the jump that are looked at


def lr_jump(
    signals: SignalView, *, times: float = 10.0, settled: int = 32, at_least: int = 32, errors: float = 4.0, lost: float = 0.1
) -> Finding | None:
    """The learning rate jumped to `times` all it had been in at least `settled` steps, and the loss has been higher since.

    Higher by `errors` standard errors, and by `lost` of what had been learned; by one standard error where the weights have
    become twice as large since. A warm-up at a small constant rate ends with such a jump too, but then the loss falls. A rise
    without a jump must be much larger: `loss_divergence`.
    """
    steps, lr = signals.last("lr", _WINDOW + 1)
    places = np.flatnonzero((lr[1:] > times * lr[:-1]) & (lr[:-1] > 0)) + 1
    if not len(places):  # the common case
        return None
    highest = next(
        (place for place in places[::-1] if lr[place] >= times * signals.highest("lr", before=int(steps[place]))), None
    )
    if highest is None:  # a schedule that begins again
        return None
    at = int(steps[highest])
    loss_at, loss = signals.last("loss", _WINDOW + settled)
    before, after = loss[loss_at < at][-settled:], loss[loss_at >= at]
    if len(before) < settled or len(after) < at_least or not np.isfinite(before).all() or not np.isfinite(after).all():
        return None
    normal, level, early = middle(before), middle(after[-_WINDOW // 2 :]), middle(signals.first("loss", 10)[1])
    rise = rise_in_errors(before, after[-_WINDOW // 2 :])
    if _weights_grew(signals, at):
        is_higher = rise >= 1.0
    else:
        is_higher = rise >= errors and level - normal >= lost * max(early - normal, abs(normal) / 5)
    if not is_higher:
        return None
    rates = learning_rates(signals, at, since=at)
    evidence = {"onset": at, "loss": level, "normal": normal, "initial_loss": early, **rates}
    return Finding("loss-divergence", step=int(loss_at[-1]), severity="critical", evidence=evidence)


def _weights_grew(signals: SignalView, at: int, *, times: float = 2.0) -> bool:
    steps, norms = signals.last("weight_norm", 64)
    return bool(len(norms) and steps[0] < at and norms[-1] > times * norms[steps < at][-1])
