"""`slow-loading`: much of each step is spent waiting for data; and whether one worker is the cause."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.signals.run_view import RunView
from holdfast.signals.view import Column, Floats, measured

_BLOCK = 16  # rows, of which the waiting is taken together to say when it began
_MOST = 0.5  # of the time, spent reading
_INTERRUPTED = 2.0  # times as long as the quickest tenth of the steps, on average
_PAUSES = 2  # the longest waits: half of the waiting must be left without them, or the machine only paused


def slow_loading(run: RunView, *, rows: int = 512, at_least: int = 96, share: float = 0.2, wait: float = 0.005) -> Finding | None:
    """More than `share` of the time is spent waiting, and more than `wait` seconds a step.

    Less than that is what any loader costs, and only shows because the steps themselves are tiny. The first batch of each
    worker is waited for in every pass, and does not count; nor does a machine that was busy or paused for a while. It is reported
    once it is known how many workers there are, for then it can be said whether one of them is slow. A CPU that reads and
    computes by turns, and always did, is a remark unless it reads for most of the time: workers would take cores from it.
    """
    waited, step = run.column("data_seconds", rows), run.column("step_seconds", rows)
    position = _positions(run, len(step))
    both = measured(waited) & measured(step) & np.isfinite(waited) & np.isfinite(step)
    both &= ~((position >= 0) & (position < max(1, run.workers)))
    if (run.workers < 0 and run.seen < rows) or both.sum() < at_least or float(np.sum(step[both])) <= 0.0:
        return None
    part, mean = float(np.sum(waited[both]) / np.sum(step[both])), float(np.mean(waited[both]))
    if float(np.sum(np.sort(waited[both])[:-_PAUSES])) < 0.5 * share * float(np.sum(step[both])):
        return None
    late = slice(int(both.sum()) // 2, None)
    if part < share or mean < wait or float(np.sum(waited[both][late])) < share * float(np.sum(step[both][late])):
        return None
    steps = run.column("step", rows)[both]
    onset = _onset(steps, waited[both], mean)
    if run.workers <= 0 and _is_interrupted(waited[both][steps >= onset], step[both][steps >= onset], wait):
        return None
    evidence = {
        "fraction": part,
        "wait_seconds": mean,
        "step_seconds": float(np.mean(step[both])),
        "workers": max(0, run.workers),
    }
    ready = [batches for step, batches in run.ready if step >= onset]
    if not ready or np.median(ready) >= run.workers - 1:  # the others are ahead of it: they are quick enough
        evidence |= _slow_worker(run, onset)
    settings = {"cores": run.cores, "persistent_workers": run.persistent, "pin_memory": run.pinned}
    evidence |= {name: value for name, value in settings.items() if value is not None}
    evidence["on_gpu"] = bool(measured(run.column("gpu_allocated", rows)).any())
    is_habit = onset == 0 and run.workers <= 0 and not evidence["on_gpu"] and part < _MOST
    severity = "info" if is_habit else "warning"
    return Finding("slow-loading", step=run.step, severity=severity, evidence={"onset": onset, **evidence})


def _is_interrupted(waited: Floats, step: Floats, wait: float) -> bool:
    """Whether a busy machine takes the process off its core: most batches are read at once, and computing is paused as well."""
    computing = step - waited
    return float(np.median(waited)) < wait and float(np.mean(computing)) > _INTERRUPTED * float(np.quantile(computing, 0.1))


def _onset(steps: Column, waited: Floats, mean: float) -> int:
    """Where the waiting began: the first block from which on every one but a few waits at least half as long as the mean."""
    blocks = [float(np.mean(waited[start : start + _BLOCK])) >= 0.5 * mean for start in range(0, len(waited), _BLOCK)]
    long = np.cumsum(blocks[::-1])[::-1] >= 0.8 * np.arange(len(blocks), 0, -1)
    first = next((at for at, slow in enumerate(blocks) if slow and long[at]), 0)
    return 0 if first == 0 else int(steps[first * _BLOCK])


def _slow_worker(run: RunView, onset: int, *, rows: int = 2) -> dict[str, float]:
    """Whose batches were waited for since then: all of one worker against an equal part of each, more than half the way."""
    waits = [(worker, seconds) for step, worker, seconds in run.waits if step >= onset and 0 <= worker < run.workers]
    if run.workers < 2 or len(waits) < rows * run.workers:
        return {}
    sums = np.bincount([worker for worker, _ in waits], [seconds for _, seconds in waits], minlength=run.workers)
    share = float(sums.max() / sums.sum()) if sums.sum() > 0 else 0.0
    return {"slow_worker": int(sums.argmax()), "worker_fraction": share} if share > 0.5 + 0.5 / run.workers else {}


def _positions(run: RunView, count: int) -> Floats:
    """Which step of its pass each of the last rows is; -1 in a pass whose beginning is not known."""
    rows, starts = np.arange(run.seen - count, run.seen), np.array(run.passes)
    which = np.searchsorted(starts, rows, side="right") - 1
    return np.where(which >= 0, rows - starts[np.maximum(which, 0)], -1.0) if len(starts) else np.full(count, -1.0)
