"""A factor on the learning rate, and a limit to it, that hold whatever the script does: put on around each update only.

Schedulers and scripts that set the rate by hand go on as they are; only the optimizer sees the smaller rate.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

Optimizer = torch.optim.Optimizer
_CLIMBS = 1.5  # times the limit: a rate that is no higher is on its way up, and takes the limit along; one that jumps does not
_LIFTED_AFTER = 50  # updates without a jump: it happened once, and a schedule that jumps on purpose later is left alone


class LearningRateFactor:
    """The factor of one training, a warm-up to it after a roll-back, and the rates beyond which it must not jump.

    A part of the factor may be there for a while only: it climbs back to one.
    """

    def __init__(self) -> None:
        self._lasting, self._passing = 1.0, 1.0
        self._since, self._warm_up_steps, self._regain_steps = 0, 0, 0
        self._limits: weakref.WeakKeyDictionary[Optimizer, list[torch.Tensor | float]] = weakref.WeakKeyDictionary()
        self._without_a_jump = 0
        self._put_on: list[tuple[dict[str, Any], Any]] = []

    def lower(self, factor: float, step: int, *, warm_up_steps: int = 0, regain_steps: int = 0) -> None:
        """Multiply the rate by another factor from this step on, slowly at first if steps of warm-up are given.

        With `regain_steps` it stays for as many steps, and is taken back within as many more.
        """
        self._lasting *= self._passing_at(step) * (1.0 if regain_steps else factor)
        self._passing = factor if regain_steps else 1.0
        self._since, self._warm_up_steps, self._regain_steps = step, warm_up_steps, regain_steps

    def hold(self, optimizers: Iterable[Optimizer], limit: float) -> None:
        """Keep all rates from jumping: the first may be `limit`, or what it is now; the others as much more as that one may."""
        times, self._without_a_jump = None, 0
        for optimizer in optimizers:
            rates = [group["lr"] for group in optimizer.param_groups if group.get("lr") is not None]
            if times is None:
                first = float(rates[0]) if rates else 0.0
                times = max(1.0, limit / first) if first > 0.0 else 1.0
            self._limits[optimizer] = [rate * times for rate in rates]

    @property
    def factor(self) -> float:
        """The factor without what a warm-up takes and what was regained."""
        return self._lasting * self._passing

    def at(self, step: int) -> float:
        """The factor for the update of a step."""
        factor, done = self._lasting * self._passing_at(step), step - self._since + 1
        return factor if done >= self._warm_up_steps else factor * done / self._warm_up_steps

    def _passing_at(self, step: int) -> float:
        """Evenly from one step to the next, so that no update is much larger than the one before."""
        if self._passing == 1.0:
            return 1.0
        regained = (step - self._since - self._regain_steps) / self._regain_steps
        return float(self._passing ** (1.0 - min(1.0, max(0.0, regained))))

    def put_on(self, optimizer: Optimizer, step: int) -> None:
        """Before an update: let the optimizer see the smaller rate."""
        self.take_off()  # a step that raised has left it on
        factor, limits = self.at(step), self._limits.get(optimizer) if self._limits else None
        if factor == 1.0 and limits is None:
            return
        groups, held = [group for group in optimizer.param_groups if group.get("lr") is not None], False
        for number, group in enumerate(groups):
            rate = group["lr"]
            seen = rate if limits is None or number >= len(limits) else _within(limits, number, rate)  # a group may come later
            held = held or seen is not rate
            if isinstance(rate, torch.Tensor):
                self._put_on.append((group, rate.clone()))
                rate.copy_(seen * factor)
            else:
                self._put_on.append((group, rate))
                group["lr"] = seen * factor
        self._lift(held)

    def _lift(self, held: bool) -> None:
        self._without_a_jump = 0 if held else self._without_a_jump + 1
        if self._limits and self._without_a_jump >= _LIFTED_AFTER:
            self._limits.clear()

    def take_off(self) -> None:
        """After an update: the script finds the rate it has set."""
        for group, rate in self._put_on:
            if isinstance(rate, torch.Tensor):
                group["lr"].copy_(rate)
            else:
                group["lr"] = rate
        self._put_on.clear()


def _within(limits: list[torch.Tensor | float], number: int, rate: Any) -> Any:
    """The rate, or its limit where it has jumped. A rate in a tensor stays on its device."""
    limit = limits[number]
    if isinstance(rate, torch.Tensor):
        limit = limits[number] = torch.where(rate <= _CLIMBS * limit, torch.maximum(rate, torch.as_tensor(limit).to(rate)), limit)
        return torch.minimum(rate, limit)
    if limit < rate <= _CLIMBS * limit:
        limits[number] = rate
    return rate if rate <= limits[number] else limits[number]
