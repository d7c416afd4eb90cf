"""`scaler-collapse`: the gradient scaler finds no scale at which half precision holds the gradients."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.signals.view import SignalView, measured


def scaler_collapse(
    signals: SignalView, *, window: int = 200, settle: int = 50, smallest: float = 1.0, share: float = 0.2
) -> Finding | None:
    """Look at the scale and at the share of updates that the scaler skipped.

    A scaler in good health leaves out one update in two thousand, and up to a dozen at the very start while it looks for its
    scale; those first `settle` steps are not counted.
    """
    scale = signals.column("scale", window)
    if not len(scale) or not measured(scale)[-1]:
        return None
    steps, skipped = signals.column("step", window), signals.column("skipped", window) == 1
    counted = steps >= settle
    skipped_fraction = float(np.mean(skipped[counted])) if counted.sum() >= settle else 0.0
    newest = float(scale[-1])
    if newest >= smallest and skipped_fraction < share:
        return None
    evidence = {
        "scale": newest,
        "highest_scale": signals.highest("scale", before=int(steps[-1]) + 1),
        "skipped_fraction": skipped_fraction,
        "proposal": "use bfloat16 where the card has it: it needs no scaler",
    }
    return Finding(
        "scaler-collapse", step=int(steps[-1]), severity="critical" if newest < smallest else "warning", evidence=evidence
    )
