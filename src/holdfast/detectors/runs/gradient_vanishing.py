"""`gradient-vanishing`: the first layers get next to nothing of the gradient that the last ones get."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.runs.layers import layers_of
from holdfast.signals.run_view import RunView


def gradient_vanishing(run: RunView, *, ratio: float = 1e-3, samples: int = 3, depth: int = 5) -> Finding | None:
    """The usual norm in the first third of at least `depth` layers is under `ratio` of that in the last third.

    Healthy networks keep the two within a factor of a hundred. Exact zeros are another matter: `dead-units`.
    """
    layers = layers_of(run, samples=samples)
    levels = [layer.level() for layer in layers]
    third = len(layers) // 3
    if len(layers) < depth or min(levels) == 0.0:
        return None
    first, last = float(np.median(levels[:third])), float(np.median(levels[-third:]))
    if first > ratio * last:
        return None
    seen_at = max(samples.steps[-1] for layer in layers for samples in layer.parameters.values())  # perhaps undone since
    evidence = {"onset": 0, "first": first, "last": last, "ratio": first / last, "layer": layers[0].name, "layers": len(layers)}
    return Finding("gradient-vanishing", step=run.step, evidence={**evidence, "seen_at": seen_at})
