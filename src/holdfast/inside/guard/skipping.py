"""Skip an update: hide the gradients from the optimizer, or set the flag by which a fused optimizer skips on the device.

Every optimizer ignores a parameter without a gradient: weight, momentum and step count stay as they are. After the step the
script finds its gradients again, as it would without Holdfast.

An averaged copy of the model (EMA) must not move either. For torch's own `AveragedModel` the call is skipped. Any other copy that
the script registered with `run.ema(copy)` is restored before the next update.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from holdfast.inside.gradients.non_finite import tensors_in

Optimizer = torch.optim.Optimizer
_ABSENT: Any = object()


class SkippedUpdate:
    """One update that is skipped on the host."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._gradients = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        for parameter, _ in self._gradients:
            parameter.grad = None

    def give_back(self) -> None:
        """Restore the gradients, where the script has not set others meanwhile."""
        for parameter, gradient in self._gradients:
            if parameter.grad is None:
                parameter.grad = gradient
        self._gradients.clear()


class SkipFlag:
    """A flag on the device by which a fused optimizer skips its update; nothing waits for its value.

    A gradient scaler uses the same attributes; its values are restored after the step.
    """

    def __init__(self, optimizer: Optimizer, flag: torch.Tensor) -> None:
        attributes = vars(optimizer)
        self._found_inf, self._grad_scale = attributes.get("found_inf", _ABSENT), attributes.get("grad_scale", _ABSENT)
        self.value, found_inf = flag, self._found_inf
        if found_inf is not _ABSENT and found_inf is not None:
            self.value = torch.maximum(flag, found_inf.reshape(()).to(flag))
        attributes["found_inf"] = self.value
        if self._grad_scale is _ABSENT:
            attributes["grad_scale"] = None

    def remove(self, optimizer: Optimizer) -> None:
        """Restore the optimizer's attributes."""
        attributes = vars(optimizer)
        for name, before in (("found_inf", self._found_inf), ("grad_scale", self._grad_scale)):
            if before is not _ABSENT:
                attributes[name] = before
            else:
                attributes.pop(name, None)


def supports_skip_flag(optimizer: Optimizer) -> bool:
    """Whether the optimizer can skip by a flag: all groups are fused, and its state exists.

    On the very first step the fused momentum of SGD would stay uninitialised.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False) or not optimizer.state:
        return False
    for group in optimizer.param_groups:  # noqa: SIM110 - on the way of every step
        if not group.get("fused"):
            return False
    return True


_WARM_UP = 50  # norms before a limit applies
_DECAY = 0.999  # of the largest norm per step: half of it after 700
_FACTOR = 8.0  # over the largest norm


class NormHistory:
    """A decaying maximum of a training's gradient norms, and the limit derived from it."""

    def __init__(self) -> None:
        self.largest, self.seen = 0.0, 0

    def limit(self) -> float:
        """The largest norm that an update may have now."""
        return _FACTOR * self.largest if self.seen >= _WARM_UP and self.largest > 0.0 else math.inf

    def add(self, norm: float) -> None:
        """Add the norm of an update that was applied."""
        if math.isfinite(norm):
            self.largest = max(norm, self.largest * _DECAY)
            self.seen += 1

    def forget(self) -> None:
        """Start over, after a rollback or with other parameters."""
        self.largest, self.seen = 0.0, 0


class Averages:
    """The averaged copies that were registered for a training."""

    def __init__(self, copies: Iterable[Any] = ()) -> None:
        self._copies = [weakref.ref(copy) for copy in copies]
        self._saved: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.has_saved = False

    def __bool__(self) -> bool:
        return bool(self._copies)

    def add(self, copy: Any) -> None:
        """Register a copy."""
        self._copies.append(weakref.ref(copy))

    def alive(self) -> list[Any]:
        """The copies that still exist."""
        return [copy for reference in self._copies if (copy := reference()) is not None]

    def save(self) -> None:
        """Save the copies: an update was skipped, and the script is about to average over it."""
        states = [copy if isinstance(copy, nn.Module) else copy.state_dict() for copy in self.alive()]
        self._saved = [(tensor, tensor.detach().clone()) for state in states for _, tensor in tensors_in(state)]
        self.has_saved = bool(self._saved)

    def restore(self) -> None:
        """Restore what was saved, before the next update."""
        with torch.no_grad():
            for tensor, value in self._saved:
                tensor.copy_(value)
        self._saved.clear()
        self.has_saved = False
