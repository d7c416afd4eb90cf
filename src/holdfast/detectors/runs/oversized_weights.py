"""`non-finite-weights` while the loss is still finite: a weight too large to be squared, where nothing looks at it yet."""

from __future__ import annotations

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.signals.run_view import RunView, Samples
from holdfast.signals.view import measured


def oversized_weights(run: RunView, *, rows: int = 10) -> Finding | None:
    """The norm of a parameter was finite, and in its newest sample is not; the loss was finite in the last `rows` steps.

    A bit of an exponent that flips makes 1e37 of a weight, and behind a ReLU that may change nothing today. A loss that is not
    finite has findings of its own.
    """
    losses = run.column("loss", rows)
    valid = losses[measured(losses)]
    if not len(valid) or not np.isfinite(valid).all():
        return None
    for name, samples in run.parameters.items():
        if (first := _first(samples)) is not None:
            evidence = {"parameter": name, **first, "loss": float(valid[-1])}
            return Finding("non-finite-weights", step=run.step, severity="critical", evidence=evidence)
    return None


def _first(samples: Samples) -> dict[str, float | int] | None:
    """The last finite norm and the one behind it, if that and all since are not."""
    norms = np.array(samples.weight_norm)
    if len(norms) < 2 or np.isfinite(norms[-1]) or not measured(norms).all():
        return None
    finite = np.flatnonzero(np.isfinite(norms))
    if not len(finite):
        return None
    at = int(finite[-1])
    return {
        "onset": samples.steps[at] + 1,
        "seen_at": samples.steps[at + 1],
        "weight_norm_before": float(norms[at]),
        "weight_norm": float(norms[at + 1]),
    }
