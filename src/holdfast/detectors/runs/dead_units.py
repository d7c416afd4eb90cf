"""`dead-units`: layers whose gradients are exactly zero, up to a layer that still gets some.

Seen is a layer that is dead as a whole: activations that are zero for every input let nothing through to what lies before
them, unless a residual connection leads around it. Single dead units in a layer that lives do not show in the norm of its
gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.detectors.finding import Finding
from holdfast.detectors.runs.layers import Layer, layers_of
from holdfast.signals.run_view import RunView, Samples


def dead_units(run: RunView, *, num_samples: int = 3) -> Finding | None:
    """The first layers' gradients are zero to the last bit at each of the last samples; a later layer's are not.

    Fewer will do for several layers together that were never zero before: they have died.
    """
    layers = layers_of(run, samples=num_samples)
    dead = [_dead(layer, num_samples) or _has_died(layer) for layer in layers]
    if not any(_dead(layer, num_samples) for layer in layers) and not (len(dead) > 1 and dead[0] and dead[1]):
        return None
    count = dead.index(False) if False in dead else len(dead)
    if count == 0 or count == len(dead):
        return None
    last = layers[count - 1]
    seen_at = max(samples.steps[-1] for samples in last.parameters.values())  # a roll-back may have undone it since
    evidence = {"onset": _since(last), "layers": count, "of": len(layers), "last_dead": last.name, "seen_at": seen_at}
    return Finding("dead-units", step=run.step, evidence=evidence)


def overwritten_layer(run: RunView, *, times: float = 3.0) -> Finding | None:
    """A layer anywhere whose gradients are zero to the last bit since one of its weights, or biases, became `times` as large."""
    layers = layers_of(run, samples=2)
    for layer in layers:
        if _has_died(layer) and (jump := _jump_into_zero(layer, times)) and any(map(_lives, layers)):
            evidence = {"onset": _since(layer), "layers": 1, "of": len(layers), "last_dead": layer.name, **jump}
            return Finding("dead-units", step=run.step, evidence=evidence)
    return None


def _jump_into_zero(layer: Layer, times: float) -> dict[str, Any]:
    """The parameter whose norm jumped between the last sample with a gradient and the next one."""
    for own, samples in layer.parameters.items():
        at, norms = int((samples.norms() != 0.0).argmin()), np.array(samples.weight_norm)
        before, after = float(norms[at - 1]), float(norms[at])
        if at > 0 and after > times * before > 0.0:
            return {"parameter": f"{layer.name}.{own}", "weight_norm_before": before, "weight_norm": after}
    return {}


def _lives(layer: Layer) -> bool:
    return any(samples.norms()[-1] > 0.0 for samples in layer.parameters.values())


def _dead(layer: Layer, samples: int) -> bool:
    return all(not parameter.norms()[-samples:].any() for parameter in layer.parameters.values())


def _has_died(layer: Layer) -> bool:
    """Whether all of it is zero in the newest samples, and nothing of it was zero in any before those."""
    return all(0 < np.count_nonzero(norms) == (norms != 0.0).argmin() for norms in map(Samples.norms, layer.parameters.values()))


def _since(layer: Layer) -> int:
    """The first sample of the zeros at the end."""
    one = next(iter(layer.parameters.values()))
    alive = np.flatnonzero(one.norms())
    return list(one.steps)[alive[-1] + 1] if len(alive) else 0
