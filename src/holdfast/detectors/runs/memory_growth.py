"""`host-memory-growth` and `gpu-memory-growth`: memory that grows from step to step and does not level off."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.signals.run_view import RunView
from holdfast.signals.view import Floats, measured


def host_memory_growth(run: RunView) -> Finding | None:
    """Of the process."""
    return _growth(run, "host-memory-growth", "host_rss")


def gpu_memory_growth(run: RunView) -> Finding | None:
    """Of tensors on the GPU."""
    return _growth(run, "gpu-memory-growth", "gpu_allocated")


def _growth(
    run: RunView,
    code: str,
    column: str,
    *,
    least: float = 64e6,
    share: float = 0.05,
    since: tuple[float, ...] = (0.25, 0.5, 0.6),
    steady: float = 0.3,
) -> Finding | None:
    """From the warm-up on, or from one of these shares of the run, each sixth adds `steady` of the usual sixth, all `share`.

    Caches and allocators level off, a leak does not. During the first pass over the data it may be a cache that fills: info.
    """
    blocks = run.whole[column].means
    if column == "host_rss" and (leak := _with_evaluations(run, code, least)) is not None:
        return leak
    findings = (_since(run, code, column, blocks[int(part * len(blocks)) :], least, share, steady) for part in since)
    return next(filter(None, findings), None)


def _since(run: RunView, code: str, column: str, means: Floats, least: float, share: float, steady: float) -> Finding | None:
    if len(means) < 13:
        return None
    levels = np.array([float(np.mean(part)) for part in np.array_split(means, 7)])
    moves, grown = np.diff(levels), float(means[-1] - means[0])
    if grown < max(least, share * float(means[0])) or float(moves.min()) < steady * float(moves.mean()):
        return None
    epochs = run.column("epoch")
    filling = bool(len(epochs) and measured(epochs[-1:])[0] and epochs[-1] == 0)
    onset = max(0, run.step - len(means) * run.whole[column].size)
    evidence = {
        "onset": onset,
        "bytes_per_step": grown / (len(means) * run.whole[column].size),
        "grown": grown,
        "now": float(means[-1]),
        "first_epoch": filling,
        **_holders(run, column, onset),
    }
    return Finding(code, step=run.step, severity="info" if filling else "warning", evidence=evidence)


def _with_evaluations(run: RunView, code: str, least: float, *, groups: int = 3, alike: float = 3.0) -> Finding | None:
    """Evaluations add about as much again and again, and it is not given back: the last few, or all but the first quarter.

    The first ones warm up caches. Single ones also free what others took: so of many, a third each is compared.
    """
    steps, sizes = run.finite("host_rss")
    places = np.searchsorted(steps, np.array(sorted(set(run.evaluated))))
    places = places[(places > 0) & (places < len(steps))]
    for chosen in (places[-groups:], places[len(places) // 4 :]):
        if len(chosen) < groups:
            continue
        starts = [int(part[0]) for part in np.array_split(chosen, groups)]
        rises = sizes[[*(start - 1 for start in starts[1:]), -1]] - sizes[[start - 1 for start in starts]]
        grown, in_evaluation = float(rises.sum()), float((sizes[chosen] - sizes[chosen - 1]).sum())
        is_steady = rises.min() >= least / 8 and rises.max() <= alike * rises.min()
        if is_steady and grown >= least and 0.8 * grown <= in_evaluation <= 1.25 * grown:
            each = grown / max(1, int(steps[-1] - steps[starts[0] - 1]))
            onset = int(steps[starts[0]])
            evidence = {"onset": onset, "bytes_per_step": each, "grown": grown, "now": float(sizes[-1]), "first_epoch": False}
            return Finding(code, step=run.step, evidence={**evidence, **_holders(run, "host_rss", onset)})
    return None


def _holders(run: RunView, column: str, since: int) -> dict[str, float]:
    """Who holds it: what the loader's workers have, and the share of the growth since a step that came with evaluations."""
    holders = {}
    workers = run.finite("workers_rss", 64)[1]
    if column == "host_rss" and len(workers):
        holders["workers"] = float(workers[-1])
    steps, sizes = run.finite(column)
    first = max(0, int(np.searchsorted(steps, since)) - 1)
    steps, rises = steps[first + 1 :], np.diff(sizes[first:])  # from the step before to this one
    if len(run.evaluated) and len(rises) and float(rises.sum()) > 0:
        places = np.unique(np.searchsorted(steps, np.array([at for at in run.evaluated if at >= since])))
        holders["in_evaluation"] = max(0.0, float(rises[places[places < len(rises)]].sum()) / float(rises.sum()))
    return holders
