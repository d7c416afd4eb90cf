"""How an update is left out: the optimizer finds no gradients, or a flag on the device that says so.

Every optimizer passes over a parameter without a gradient: its weight, its momentum, its count of steps stay as they are. The
script finds the gradients again after the step, as it would without Holdfast.
"""

from __future__ import annotations

import math
from typing import Any

import torch

Optimizer = torch.optim.Optimizer


class SkippedUpdate:
    """One update that is not made."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self._kept = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        for parameter, _ in self._kept:
            parameter.grad = None

    def give_back(self) -> None:
        """Put the gradients back, where the script has not put others meanwhile."""
        for parameter, gradient in self._kept:
            if parameter.grad is None:
                parameter.grad = gradient
        self._kept.clear()


class Flag:
    """A flag on the device by which a fused optimizer leaves its update out; nothing waits for its value.

    A gradient scaler uses the same one; its own value is kept, and found again after the step.
    """

    def __init__(self, optimizer: Optimizer, flag: torch.Tensor) -> None:
        self._before = {name: vars(optimizer)[name] for name in ("found_inf", "grad_scale") if name in vars(optimizer)}
        given: Any = self._before.get("found_inf")
        self.value = flag if given is None else torch.maximum(flag, given.reshape(()).to(flag))
        attributes = vars(optimizer)
        attributes["found_inf"] = self.value
        attributes.setdefault("grad_scale", None)

    def take_away(self, optimizer: Optimizer) -> None:
        """Leave the optimizer as it was found."""
        attributes = vars(optimizer)
        for name in ("found_inf", "grad_scale"):
            if name in self._before:
                attributes[name] = self._before[name]
            else:
                attributes.pop(name, None)


def takes_a_flag(optimizer: Optimizer) -> bool:
    """Whether the optimizer leaves its update out by a flag: all its groups are fused, and it has made its state already.

    On the very first step the fused momentum of SGD would be left uninitialised.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False) or not optimizer.state:
        return False
    return all(group.get("fused") for group in optimizer.param_groups)


_WARM_UP = 50  # norms, before anything is called unusual
_FORGETS = 0.999  # what is left of the largest norm after a step: half of it after 700
_TIMES = 8.0  # over the largest


class NormHistory:
    """The norms of a training's gradients so far."""

    def __init__(self, *, times: float = _TIMES, warm_up: int = _WARM_UP) -> None:
        self._times, self._warm_up = times, warm_up
        self.largest, self.seen = 0.0, 0

    def limit(self) -> float:
        """The largest norm that an update may have now."""
        return self._times * self.largest if self.seen >= self._warm_up and self.largest > 0.0 else math.inf

    def add(self, norm: float) -> None:
        """Take in the norm of an update that was made."""
        if math.isfinite(norm):
            self.largest = max(norm, self.largest * _FORGETS)
            self.seen += 1

    def forget(self) -> None:
        """Begin again, after a roll-back, or with other parameters."""
        self.largest, self.seen = 0.0, 0
