"""The factor and limit that repairs put on the learning rate, applied around each update only.

Schedulers, and scripts that set the LR by hand, are not disturbed: only the optimizer sees the lower LR.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from holdfast.inside.control.settings import GroupOverrides

Optimizer = torch.optim.Optimizer
_RISES = 1.5  # times the limit: an LR up to this is rising and raises the limit; a higher one has jumped
_LIFTED_AFTER = 50  # updates without a jump; a schedule that jumps on purpose later is left alone


class LearningRateFactor:
    """The LR factor of one training, its warm-up after a rollback, and the limit against LR jumps.

    A temporary factor rises back to one.
    """

    def __init__(self) -> None:
        self._permanent, self._temporary = 1.0, 1.0
        self._since, self._warmup_steps, self._regain_steps = 0, 0, 0
        self._limits: weakref.WeakKeyDictionary[Optimizer, list[torch.Tensor | float]] = weakref.WeakKeyDictionary()
        self._steps_without_jump = 0
        self._overrides = GroupOverrides()

    def lower(self, factor: float, step: int, *, warmup_steps: int = 0, regain_steps: int = 0) -> None:
        """Multiply the LR by a factor from this step on, after a linear warm-up.

        With `regain_steps` the factor holds for that many steps, then rises back to one over as many.
        """
        self._permanent *= self._temporary_at(step) * (1.0 if regain_steps else factor)
        self._temporary = factor if regain_steps else 1.0
        self._since, self._warmup_steps, self._regain_steps = step, warmup_steps, regain_steps

    def limit(self, optimizers: Iterable[Optimizer], max_lr: float) -> None:
        """Keep all LRs from jumping: the first to `max_lr` or its current value, the others in proportion."""
        ratio, self._steps_without_jump = None, 0
        for optimizer in optimizers:
            rates = [group["lr"] for group in optimizer.param_groups if group.get("lr") is not None]
            if ratio is None:
                first = float(rates[0]) if rates else 0.0
                ratio = max(1.0, max_lr / first) if first > 0.0 else 1.0
            self._limits[optimizer] = [lr * ratio for lr in rates]

    @property
    def factor(self) -> float:
        """The full factor, without warm-up or regained part."""
        return self._permanent * self._temporary

    def at(self, step: int) -> float:
        """The factor for the update of a step."""
        factor, steps = self._permanent * self._temporary_at(step), step - self._since + 1
        return factor if steps >= self._warmup_steps else factor * steps / self._warmup_steps

    def _temporary_at(self, step: int) -> float:
        """Rises geometrically, so that no update is much larger than the one before."""
        if self._temporary == 1.0:
            return 1.0
        regained = (step - self._since - self._regain_steps) / self._regain_steps
        return float(self._temporary ** (1.0 - min(1.0, max(0.0, regained))))

    def apply(self, optimizer: Optimizer, step: int) -> None:
        """Lower the LR for the update of a step."""
        self.revert()  # a step that raised has left it applied
        factor, limits = self.at(step), self._limits.get(optimizer) if self._limits else None
        if factor == 1.0 and limits is None:
            return
        jumped = False
        for index, group in enumerate(group for group in optimizer.param_groups if group.get("lr") is not None):
            lr = limited = group["lr"]
            if limits is not None and index < len(limits):  # a group may be added later
                limited = _limited(limits, index, lr)
                jumped = jumped or limited is not lr
            self._overrides.apply(group, "lr", limited * factor)
        self._steps_without_jump = 0 if jumped else self._steps_without_jump + 1
        if self._limits and self._steps_without_jump >= _LIFTED_AFTER:
            self._limits.clear()

    def revert(self) -> None:
        """Restore the script's LR after the update."""
        self._overrides.revert()


def _limited(limits: list[torch.Tensor | float], index: int, lr: Any) -> Any:
    """The LR, or its limit if it jumped. An LR in a tensor stays on its device."""
    limit = limits[index]
    if isinstance(lr, torch.Tensor):
        limit = limits[index] = torch.where(lr <= _RISES * limit, torch.maximum(lr, torch.as_tensor(limit).to(lr)), limit)
        return torch.minimum(lr, limit)
    if limit < lr <= _RISES * limit:
        limits[index] = lr
    return lr if lr <= limits[index] else limits[index]
