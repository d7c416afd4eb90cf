"""Weight norms, the update-to-weight ratio, and which parameters are not trained; on sampled steps.

The update is measured on a fixed sample of each tensor, copied before the step and compared after it: copying all weights would
double their memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

_VALUES_PER_TENSOR = 1024
_COPY_ALL_BELOW = 1 << 18  # values in total; copying that few is cheaper than sampling


class WeightSample:
    """A sample of the weights before the update."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self._before = _sample(weights)

    def compare(self, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        """Norm of the update over norm of the weights, on the sample; a scalar on the device of the first tensor."""
        change = torch.linalg.vector_norm(_sample(weights) - self._before)
        ratio: torch.Tensor = change / torch.linalg.vector_norm(self._before).clamp_min(1e-30)
        return ratio


def weight_norms(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Norm of each tensor, as one vector on the device of the first tensor."""
    norms = torch._foreach_norm(list(weights))
    return torch.stack([_to_float32(norm, weights[0].device) for norm in norms])


def plain_weights(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters' data, not copied: of a sharded parameter this rank's shard."""
    return [getattr(parameter, "_local_tensor", parameter).detach() for parameter in parameters]


def _sample(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenate all values if they are few, else every n-th of each tensor."""
    device = weights[0].device
    few = sum(tensor.numel() for tensor in weights) <= _COPY_ALL_BELOW
    if few and all(tensor.dtype is torch.float32 and tensor.device == device for tensor in weights):
        flat: torch.Tensor = torch._C._nn.flatten_dense_tensors(list(weights))
        return flat
    pieces = []
    for tensor in weights:
        if tensor.is_contiguous() and tensor.is_floating_point():
            stride = max(1, tensor.numel() // _VALUES_PER_TENSOR)
            pieces.append(_to_float32(tensor.view(-1)[::stride], device))
    return torch.cat(pieces) if pieces else torch.zeros(1, device=device)


def _to_float32(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The values as float32 on a device; blocking only where the target is the host."""
    return values.to(device, torch.float32, non_blocking=device.type != "cpu")


FROZEN, NO_GRADIENT, NO_OPTIMIZER, TRAINED = "frozen", "no-gradient", "no-optimizer", "trained"


class Change(NamedTuple):
    """A parameter by the code of its name, why it is not trained, and its position among all `of` them."""

    name: int
    why: str
    position: int
    of: int


def status(parameter: torch.Tensor, *, in_main: bool) -> str:
    """Whether the main optimizer trains a parameter, or why not."""
    if not parameter.requires_grad:
        return FROZEN
    if not in_main:
        return NO_OPTIMIZER
    return NO_GRADIENT if parameter.grad is None else TRAINED
