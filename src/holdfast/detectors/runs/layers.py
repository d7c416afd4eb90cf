"""The parameters of a run by layer, in the order in which the model has them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from holdfast.signals.run_view import RunView, Samples


class Layer(NamedTuple):
    """The parameters that share a module."""

    name: str
    parameters: dict[str, Samples]

    def level(self) -> float:
        """The usual norm of all its gradients together."""
        return float(np.sqrt(sum(float(np.median(samples.norms())) ** 2 for samples in self.parameters.values())))


def layers_of(run: RunView, *, samples: int) -> list[Layer]:
    """Layers, first to last, of which at least so many samples are known; what is not finite is no use here."""
    by_layer: dict[str, dict[str, Samples]] = {}
    for name, one in run.parameters.items():
        if len(one.steps) >= samples and np.isfinite(one.norms()).all():
            module, _, own = name.rpartition(".")
            by_layer.setdefault(module, {})[own] = one
    return [Layer(name, parameters) for name, parameters in by_layer.items()]
