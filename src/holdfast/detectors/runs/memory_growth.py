"""`host-memory-growth` and `gpu-memory-growth`: memory that grows from step to step and does not level off."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.signals.run_view import RunView
from holdfast.signals.view import measured


def host_memory_growth(run: RunView) -> Finding | None:
    """Of the process."""
    return _growth(run, "host-memory-growth", "host_rss")


def gpu_memory_growth(run: RunView) -> Finding | None:
    """Of tensors on the GPU."""
    return _growth(run, "gpu-memory-growth", "gpu_allocated")


def _growth(
    run: RunView, code: str, column: str, *, least: float = 64e6, share: float = 0.05, warm_up: float = 0.25, steady: float = 0.3
) -> Finding | None:
    """After the warm-up, each sixth of the run adds at least `steady` of the usual sixth, and all together `share`.

    Caches and allocators level off, a leak does not. During the first pass over the data it may be a cache that fills: a remark.
    """
    blocks = run.whole[column]
    means = blocks.means[int(warm_up * len(blocks.means)) :]
    if len(means) < 13:
        return None
    levels = np.array([float(np.mean(part)) for part in np.array_split(means, 7)])
    moves, grown = np.diff(levels), float(means[-1] - means[0])
    if grown < max(least, share * float(means[0])) or float(moves.min()) < steady * float(moves.mean()):
        return None
    epochs = run.column("epoch")
    filling = bool(len(epochs) and measured(epochs[-1:])[0] and epochs[-1] == 0)
    evidence = {
        "onset": 0,
        "bytes_per_step": grown / (len(means) * blocks.size),
        "grown": grown,
        "now": float(means[-1]),
        "first_epoch": filling,
        **_holders(run, column),
    }
    return Finding(code, step=run.step, severity="info" if filling else "warning", evidence=evidence)


def _holders(run: RunView, column: str) -> dict[str, float]:
    """Who holds it: what the loader's workers have, and the share of the growth that came with evaluations."""
    found = {}
    workers = run.known("workers_rss", 64)[1]
    if column == "host_rss" and len(workers):
        found["workers"] = float(workers[-1])
    steps, sizes = run.known(column)
    rises = np.diff(sizes)
    if len(run.evaluated) and len(rises) and float(rises.sum()) > 0:
        places = (
            np.searchsorted(steps, np.array(run.evaluated)) - 1
        )  # the rise from the step before an evaluation to that after it
        mine = np.unique(places[(places >= 0) & (places < len(rises))])
        found["in_evaluation"] = max(0.0, float(rises[mine].sum()) / float(rises.sum()))
    return found
