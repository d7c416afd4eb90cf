"""`loss-plateau`: the learning rate has come to nothing while the loss was still falling."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.signals.run_view import RunView


def schedule_ended(
    run: RunView, *, nothing: float = 1e-3, share: float = 0.2, rows: int = 64, late: float = 0.2, least: float = 0.02
) -> Finding | None:
    """The rate has been under `nothing` of its peak for `share` of the run, and the model was not done by then.

    Not done: `late` of all that it learned came in the second half of the schedule, `least` of the loss itself. A model
    that is done has learned almost everything in the first. A schedule that ends with the run has no steps after it.
    """
    _, rates = run.finite("lr")
    high = np.flatnonzero(rates > nothing * run.peak_lr)
    low = len(rates) - (int(high[-1]) + 1 if len(high) else 0)
    losses = run.whole["loss"]
    if run.peak_lr == 0.0 or low < max(rows, share * run.seen):
        return None
    before = losses.means[: max(0, (run.seen - low) // losses.size)]
    if len(before) < 8:
        return None
    edge, half = max(1, len(before) // 16), len(before) // 2
    start, then, last = (float(np.mean(before[at : at + edge])) for at in (0, half, len(before) - edge))
    if then - last < max(late * (start - last), least * abs(then)):
        return None
    evidence = {"onset": run.step - low + 1, "lr": float(rates[-1]), "peak_lr": run.peak_lr, "half_way": then, "loss": last}
    return Finding("loss-plateau", step=run.step, evidence=evidence, series="loss")
