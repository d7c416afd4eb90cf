"""`slow-step`: the steps take far longer than they did."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.signals.run_view import RunView

_LASTS = 30.0  # seconds


def slow_step(run: RunView, *, times: float = 2.0, least: float = 0.02, at_least: int = 20, rows: int = 128) -> Finding | None:
    """The last quarter of the run takes `times` as long for each step as the second quarter, and `least` seconds more.

    Waiting for data does not count: that is told as `slow-loading`.

    A machine that others use as well makes steps slower for a while: almost every part of the last quarter must be so, and
    each quarter slower than the one before. That others came is likelier than a fault below three times, or before it has
    lasted for half a minute: then it is info.
    """
    blocks = run.own_seconds.means
    if len(blocks) < at_least or run.seen < rows:
        return None
    quarters = np.array_split(blocks, 4)[1:]
    levels = [float(np.median(quarter)) for quarter in quarters]
    before, now = levels[0], levels[-1]
    if now < times * before or now - before < least or levels != sorted(levels):
        return None
    if float(np.mean(quarters[-1] > 0.75 * times * before)) < 0.9:
        return None
    evidence = {"onset": run.step // 2, "before": before, "now": now, "times": now / before}
    evidence["on_gpu"] = bool(len(run.finite("gpu_allocated")[0]))
    stays = now > 1.5 * times * before and now * run.seen / 4 >= _LASTS
    return Finding("slow-step", step=run.step, severity="warning" if stays else "info", evidence=evidence)
