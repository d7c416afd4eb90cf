"""`not-learning`: updates so small that the loss cannot move."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.curves.flat import classes_of_chance
from holdfast.detectors.finding import Finding
from holdfast.signals.run_view import RunView


def tiny_updates(run: RunView, *, ratio: float = 1e-5, moved: float = 0.02, rows: int = 256) -> Finding | None:
    """An update changes the weights by less than `ratio` of their size, and the loss is where it began.

    A thousand such updates, all in one direction, change the weights by one per cent. Small updates alone are the end of
    many a good training.
    """
    losses, (_, sizes) = run.whole["loss"].means, run.finite("update_ratio")
    if run.seen < rows or len(losses) < 16 or len(sizes) < 3 or float(np.median(sizes)) > ratio:
        return None
    part = max(2, len(losses) // 8)
    start, end = float(np.mean(losses[:part])), float(np.mean(losses[-part:]))
    if abs(start - end) > moved * abs(start):
        return None
    evidence = {"onset": 0, "start": start, "end": end, "update_ratio": float(np.median(sizes)), "lr": run.peak_lr}
    return Finding("not-learning", step=run.step, evidence={**evidence, "classes": classes_of_chance(start)}, series="loss")
