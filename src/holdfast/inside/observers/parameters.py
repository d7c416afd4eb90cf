"""Size of the weights and of the update, on sampled steps.

The update is measured on a fixed sample of each tensor (every so many values), copied before the step and compared after
it: copying all weights would double their memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

_VALUES_PER_TENSOR = 1024
_ALL_OF_THEM = 1 << 18  # values; below that, copying them all is cheaper than choosing


class WeightSample:
    """A sample of the weights as they were before the update."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self._before = _sample(weights)

    def compare(self, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        """Norm of the update over norm of the weights, on the sample; a scalar where the first of the weights is."""
        change = torch.linalg.vector_norm(_sample(weights) - self._before)
        ratio: torch.Tensor = change / torch.linalg.vector_norm(self._before).clamp_min(1e-30)
        return ratio


def weight_norms(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Norm of each tensor, as one vector where the first of the weights is."""
    norms = torch._foreach_norm(list(weights))
    return torch.stack([_brought(norm, weights[0].device) for norm in norms])


def plain_weights(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters' own numbers, in place: this rank's shard of a sharded one."""
    return [getattr(parameter, "_local_tensor", parameter).detach() for parameter in parameters]


def _sample(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Values of all tensors in one: all of them if they are few, else every so many of each."""
    first = weights[0].device
    few = sum(tensor.numel() for tensor in weights) <= _ALL_OF_THEM
    if few and all(tensor.dtype is torch.float32 and tensor.device == first for tensor in weights):
        together: torch.Tensor = torch._C._nn.flatten_dense_tensors(list(weights))
        return together
    pieces = []
    for tensor in weights:
        if tensor.is_contiguous() and tensor.is_floating_point():
            stride = max(1, tensor.numel() // _VALUES_PER_TENSOR)
            pieces.append(_brought(tensor.view(-1)[::stride], first))
    return torch.cat(pieces) if pieces else torch.zeros(1, device=first)


def _brought(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The values in single precision on that device; only the host has to wait for what it gets."""
    return values.to(device, torch.float32, non_blocking=device.type != "cpu")


FROZEN, NO_GRADIENT, NO_OPTIMIZER, TRAINED = "frozen", "no-gradient", "no-optimizer", "trained"


class Change(NamedTuple):
    """A parameter by the code of its name, why it is not trained, and its place among all `of` them."""

    name: int
    why: str
    position: int
    of: int


class Untrained:
    """Remembers what was said of each parameter: only what has changed is said again."""

    def __init__(self) -> None:
        self._said: dict[int, str] = {}

    def changes(
        self,
        known: Mapping[int, weakref.ref[torch.Tensor]],
        names: Mapping[int, int],
        *,
        main: Iterable[torch.Tensor],
        others: Iterable[torch.Tensor],
    ) -> list[Change]:
        """Why parameters are not trained, or that they are now, where that is not what was said before.

        `known` are all parameters by their id, `names` the codes of their names in the order of the model. `main` are those
        of the main optimizer, whose step comes next; what only the `others` hold is theirs, and has no gradient between
        their steps.
        """
        held, theirs = {id(parameter) for parameter in main}, {id(parameter) for parameter in others}
        found = []
        for position, (number, name) in enumerate(names.items()):
            parameter = reference() if (reference := known.get(number)) is not None else None
            if parameter is None or (number in theirs and number not in held):
                continue
            why = _why(parameter, held=number in held)
            if self._said.get(number, TRAINED) != why:
                self._said[number] = why
                found.append(Change(name, why, position, len(names)))
        return found


def _why(parameter: torch.Tensor, *, held: bool) -> str:
    if not parameter.requires_grad:
        return FROZEN
    if not held:
        return NO_OPTIMIZER
    return NO_GRADIENT if parameter.grad is None else TRAINED
