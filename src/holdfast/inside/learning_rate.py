"""A factor on the learning rate that holds whatever the script does: put on around each update, taken off after it.

Schedulers and scripts that set the rate by hand go on as they are; only the optimizer sees the smaller rate.
"""

from __future__ import annotations

from typing import Any

import torch

Optimizer = torch.optim.Optimizer


class RateFactor:
    """The factor of one training, and a warm-up to it after a roll-back."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._warm_up_from, self._warm_up_steps = 0, 0
        self._put_on: list[tuple[dict[str, Any], Any]] = []

    def lower(self, factor: float, step: int, *, warm_up_steps: int = 0) -> None:
        """Multiply the rate by another factor from this step on, slowly at first if steps of warm-up are given."""
        self.factor *= factor
        self._warm_up_from, self._warm_up_steps = step, warm_up_steps

    def at(self, step: int) -> float:
        """The factor for the update of a step."""
        done = step - self._warm_up_from + 1
        return self.factor if done >= self._warm_up_steps else self.factor * done / self._warm_up_steps

    def put_on(self, optimizer: Optimizer, step: int) -> None:
        """Before an update: let the optimizer see the smaller rate."""
        self.take_off()  # a step that raised has left it on
        factor = self.at(step)
        if factor == 1.0:
            return
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if isinstance(rate, torch.Tensor):
                self._put_on.append((group, rate.clone()))
                rate.mul_(factor)
            elif rate is not None:
                self._put_on.append((group, rate))
                group["lr"] = rate * factor

    def take_off(self) -> None:
        """After an update: the script finds the rate it has set."""
        for group, rate in self._put_on:
            if isinstance(rate, torch.Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate
        self._put_on.clear()
