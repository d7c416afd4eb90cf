"""The state before a training step, so that a step that failed halfway can be repeated.

A healthy step copies almost nothing. Gradients from before the call (accumulation) are set aside, the call fills fresh ones,
and one addition joins them: bit for bit the same sums as adding in place, for the memory of one more set of gradients. Where
ranks reduce the sum of both (DDP), the earlier gradients are copied instead.
"""

from __future__ import annotations

from typing import Any

import torch

from holdfast.inside.guard.batchnorm import RunningStatistics


class RandomState:
    """The RNG states of torch on the host and the current GPU."""

    def __init__(self) -> None:
        self._states = [(generator, generator.get_state()) for generator in _generators()]

    def restore(self) -> None:
        """Set the generators back to these states."""
        for generator, state in self._states:
            generator.set_state(state)


def _generators() -> list[torch.Generator]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return [torch.default_generator]
    return [torch.default_generator, torch.cuda.default_generators[torch.cuda.current_device()]]


class StateBefore:
    """Everything that a forward and backward pass changes, from before the step."""

    def __init__(
        self, parameters: list[torch.Tensor], statistics: RunningStatistics, losses: Any, *, reduced: bool, views: bool
    ) -> None:
        """`reduced`: earlier gradients are reduced with the new ones; `views`: the reducer owns their memory."""
        self._parameters, self._reduced = parameters, reduced
        self._earlier = [(p, p.grad) for p in parameters if p.grad is not None]
        if self._earlier and views:
            self._earlier = [(p, gradient.clone()) for p, gradient in self._earlier]
        self._random = RandomState()
        self._statistics = statistics
        if statistics:
            statistics.keep()
        self._losses = losses
        self._losses_before = {**vars(losses), "_on_device": list(losses._on_device)}
        self._versions: dict[int, tuple[torch.Tensor, int]] = {}
        self._set_aside()

    def touched(self) -> set[int]:
        """Ids of the parameters whose gradient has changed since the step began."""
        return {id(p) for p in self._parameters if p.grad is not None and self._changed(id(p), p.grad)}

    def _changed(self, parameter: int, gradient: torch.Tensor) -> bool:
        before = self._versions.get(parameter)
        return before is None or before[0] is not gradient or before[1] != gradient._version

    def undo(self) -> None:
        """Restore everything, ready for another attempt."""
        self.abandon()
        self._random.restore()
        self._set_aside()

    def abandon(self) -> None:
        """Restore the gradients, statistics and recorded losses from before the step."""
        for parameter in self._parameters:
            parameter.grad = None
        for parameter, gradient in self._earlier:
            parameter.grad = gradient
        if self._statistics:
            self._statistics.put_back()
        vars(self._losses).update({**self._losses_before, "_on_device": list(self._losses_before["_on_device"])})

    def join(self) -> None:
        """Add the earlier gradients to those of the finished step."""
        if self._reduced or not self._earlier:
            return
        earlier, added = [], []
        with torch.no_grad():
            for parameter, old in self._earlier:
                new = parameter.grad
                if new is None:
                    parameter.grad = old
                elif old.layout == new.layout == torch.strided:
                    earlier.append(old)
                    added.append(new)
                    parameter.grad = old
                else:
                    parameter.grad = old + new
            if earlier:
                torch._foreach_add_(earlier, added)

    def _set_aside(self) -> None:
        for parameter, gradient in self._earlier:
            parameter.grad = gradient.clone() if self._reduced else None
        if self._reduced and self._earlier:
            self._versions = {id(p): (p.grad, p.grad._version) for p, _ in self._earlier if p.grad is not None}
