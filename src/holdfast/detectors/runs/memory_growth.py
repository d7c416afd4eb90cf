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
    evidence = {
        "onset": max(0, run.step - len(means) * run.whole[column].size),
        "bytes_per_step": grown / (len(means) * run.whole[column].size),
        "grown": grown,
        "now": float(means[-1]),
        "first_epoch": filling,
        **_holders(run, column),
    }
    return Finding(code, step=run.step, severity="info" if filling else "warning", evidence=evidence)


def _with_evaluations(run: RunView, code: str, least: float, *, evaluations: int = 3, alike: float = 3.0) -> Finding | None:
    """Each of the last evaluations has added about as much, and it was not given back. The first one warms up caches."""
    steps, sizes = run.finite("host_rss")
    places = np.searchsorted(steps, np.array(sorted(set(run.evaluated))))
    places = places[(places > 0) & (places < len(steps))][-evaluations:]
    if len(places) < evaluations:
        return None
    rises, grown = sizes[places] - sizes[places - 1], float(sizes[-1] - sizes[places[0] - 1])
    if rises.min() < least / 8 or rises.max() > alike * rises.min() or grown < max(least, 0.8 * float(rises.sum())):
        return None
    each = grown / max(1, int(steps[-1] - steps[places[0] - 1]))
    evidence = {"onset": int(steps[places[0]]), "bytes_per_step": each, "grown": grown, "now": float(sizes[-1])}
    return Finding(code, step=run.step, evidence={**evidence, "first_epoch": False, **_holders(run, "host_rss")})


def _holders(run: RunView, column: str) -> dict[str, float]:
    """Who holds it: what the loader's workers have, and the share of the growth that came with evaluations."""
    holders = {}
    workers = run.finite("workers_rss", 64)[1]
    if column == "host_rss" and len(workers):
        holders["workers"] = float(workers[-1])
    steps, sizes = run.finite(column)
    rises = np.diff(sizes)
    if len(run.evaluated) and len(rises) and float(rises.sum()) > 0:
        places = (
            np.searchsorted(steps, np.array(run.evaluated)) - 1
        )  # the rise from the step before an evaluation to that after it
        mine = np.unique(places[(places >= 0) & (places < len(rises))])
        holders["in_evaluation"] = max(0.0, float(rises[mine].sum()) / float(rises.sum()))
    return holders
