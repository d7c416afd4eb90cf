"""`slow-loading`: much of the step goes by in waiting for data; and whether one worker is to blame."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.signals.run_view import RunView
from holdfast.signals.view import Column, Floats, measured


def slow_loading(run: RunView, *, rows: int = 512, at_least: int = 48, share: float = 0.2, wait: float = 0.005) -> Finding | None:
    """More than `share` of the time is spent waiting, and more than `wait` seconds a step.

    Less than that is what any loader costs, and only shows because the steps themselves are tiny. It is told once it is known
    how many workers there are, for then it can be said whether one of them is slow.
    """
    waited, step, epoch = (run.column(name, rows) for name in ("data_seconds", "step_seconds", "epoch"))
    both = measured(waited) & measured(step) & np.isfinite(waited) & np.isfinite(step)
    if (run.workers < 0 and run.seen < rows) or both.sum() < at_least or float(np.sum(step[both])) <= 0.0:
        return None
    part, mean = float(np.sum(waited[both]) / np.sum(step[both])), float(np.mean(waited[both]))
    if part < share or mean < wait:
        return None
    evidence = {"share": part, "wait_seconds": mean, "step_seconds": float(np.mean(step[both])), "workers": max(0, run.workers)}
    evidence |= _slow_worker(np.where(both, waited, 0.0), _positions(epoch, from_start=run.seen <= len(epoch)), run.workers)
    return Finding("slow-loading", step=run.step, evidence={"onset": 0, **evidence})


def _slow_worker(waited: Floats, position: Floats, workers: int) -> dict[str, float]:
    """Workers take turns: if one is slow, every so-manieth batch is waited for, and no other.

    Told from chance by the share of the waits that fall to one: all of it against an equal part, more than half the way.
    The first batches of a pass are left out: everybody waits for those.
    """
    known = position >= 2 * workers
    if workers < 2 or known.sum() < 8 * workers:
        return {}
    turn = position[known].astype(np.int64) % workers
    sums = np.array([float(np.sum(waited[known][turn == one])) for one in range(workers)])
    share = float(sums.max() / sums.sum()) if sums.sum() > 0 else 0.0
    return {"slow_worker": int(sums.argmax()), "its_share": share} if share > 0.5 + 0.5 / workers else {}


def _positions(epoch: Column, *, from_start: bool) -> Floats:
    """Which step of its pass each row is; -1 in a pass whose beginning is not known."""
    position = np.full(len(epoch), -1.0)
    starts = [*([0] if from_start else []), *np.flatnonzero(epoch[1:] != epoch[:-1]) + 1]
    for start, end in zip(starts, [*starts[1:], len(epoch)], strict=False):
        position[start:end] = np.arange(end - start)
    return position
