"""The state before a training step, so that a step that failed halfway can be repeated.

A healthy step copies almost nothing. Gradients from before the call (accumulation) are set aside, the call fills fresh ones,
and one addition joins them: bit for bit the same sums as adding in place, for the memory of one more set of gradients.
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

    def __init__(self, parameters: list[torch.Tensor], statistics: RunningStatistics, losses: Any) -> None:
        self._parameters = parameters
        self._earlier = [(p, p.grad) for p in parameters if p.grad is not None]
        self._random = RandomState()
        self._statistics = statistics
        if statistics:
            statistics.keep()
        self._losses = losses
        self._losses_before = {**vars(losses), "_on_device": list(losses._on_device)}
        self._set_aside()

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
        for parameter, _ in self._earlier:
            parameter.grad = None
