"""Weight norms, the update-to-weight ratio, which parameters are not trained, and whether gradients are ever zeroed.

The update is measured on sampled steps, on a fixed sample of each tensor, copied before the step and compared after it: copying
all weights would double their memory.

Gradients that are never zeroed are detected in the first steps. Each backward pass adds to a gradient in place, and torch counts
in-place writes in `_version`. If the only writes between two updates are those of backward passes and clipping, nobody has zeroed
or replaced the gradient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from holdfast.signals.recorder import Recorder

_VALUES_PER_TENSOR = 1024
_COPY_ALL_BELOW = 1 << 18  # values in total; copying that few is cheaper than sampling


class WeightSample:
    """A sample of the weights before the update."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        sample = _sample(weights)
        self._before = sample.clone() if len(weights) == 1 else sample  # of one tensor it is a view

    def compare(self, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        """Norm of the update over norm of the weights, on the sample; a scalar on the device of the first tensor."""
        change = torch.linalg.vector_norm(_sample(weights) - self._before)
        ratio: torch.Tensor = change / torch.linalg.vector_norm(self._before).clamp_min(1e-30)
        return ratio


def weight_norms(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Norm of each tensor, as one vector on the device of the first tensor."""
    norms, device = torch._foreach_norm(list(weights)), weights[0].device
    if any(norm.dtype is not torch.float32 or norm.device != device for norm in norms):
        norms = tuple(_to_float32(norm, device) for norm in norms)
    return torch.stack(norms)


def plain_weights(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters' data, not copied: of a sharded parameter this rank's shard. Packed integers have no norm."""
    plain = (p.detach() if type(p) is torch.nn.Parameter else getattr(p, "_local_tensor", p).detach() for p in parameters)
    return [tensor for tensor in plain if tensor.is_floating_point() or tensor.is_complex()]


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


FROZEN, NO_GRADIENT, NO_OPTIMIZER, UNUSED, TRAINED = "frozen", "no-gradient", "no-optimizer", "unused", "trained"


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


CODE = "gradients-not-zeroed"
_UPDATES = 16  # in a row


class ZeroGradCheck:
    """Watches one gradient from update to update."""

    def __init__(self) -> None:
        self.is_decided = False
        self._num_kept = 0
        self._last: tuple[int, int, int, int] | None = None  # parameter's index, gradient's id and version, backward passes

    def before(self, parameters: Sequence[torch.Tensor], backwards: int, *, clipped: bool, scaled: bool) -> None:
        """Check the gradient before an update; `backwards` counts all passes so far."""
        if self._last is None:
            return
        index, gradient_id, version, last_backwards = self._last
        gradient = parameters[index].grad if index < len(parameters) else None
        passes = backwards - last_backwards
        self._num_kept += 1
        if (
            scaled
            or gradient is None
            or id(gradient) != gradient_id
            or passes < 1
            or gradient._version - version != passes + clipped
        ):
            self.is_decided = True

    def after(self, parameters: Sequence[torch.Tensor], backwards: int) -> bool:
        """Remember the gradient after an update; whether it is certain by now that gradients are never zeroed."""
        with_gradient = ((index, parameter.grad) for index, parameter in enumerate(parameters) if parameter.grad is not None)
        index, gradient = next(with_gradient, (0, None))
        if gradient is None:
            self.is_decided = True
            return False
        self._last = (index, id(gradient), gradient._version, backwards)
        if self.is_decided or self._num_kept < _UPDATES:
            return False
        self.is_decided = True
        return bool(gradient.any())  # an optimizer may zero gradients in its step


def report_not_zeroed(recorder: Recorder, step: int) -> None:
    """Write the finding."""
    evidence = {"onset": 0, "updates": step}
    with contextlib.suppress(OSError):
        recorder.run.journal.write(
            "finding", rank=recorder.recording.rank, code=CODE, severity="warning", step=step, evidence=evidence
        )
