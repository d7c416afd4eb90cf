"""The state before a training step, so that a step that failed half-way can be done again as if it had never begun.

In the healthy case almost nothing is copied. Gradients that were there before the call (accumulation) are put aside, the call
fills fresh ones, and one addition joins them: the same sums, bit for bit, as adding in place, for the memory of one more set
of gradients while the call runs. Where ranks reduce the sum of both (DDP), the earlier ones are copied instead.
"""

from __future__ import annotations

from typing import Any

import torch

from holdfast.inside.guard.batchnorm import RunningStatistics


class RandomState:
    """The random streams of torch at one moment, on the host and on the current GPU."""

    def __init__(self) -> None:
        self._states = [(generator, generator.get_state()) for generator in _generators()]

    def put_back(self) -> None:
        """Continue from that moment again."""
        for generator, state in self._states:
            generator.set_state(state)


def _generators() -> list[torch.Generator]:
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return [torch.default_generator]
    return [torch.default_generator, torch.cuda.default_generators[torch.cuda.current_device()]]


class StateBefore:
    """Everything that a step changes, as it was before the step."""

    def __init__(
        self, parameters: list[torch.Tensor], statistics: RunningStatistics, losses: Any, *, reduced: bool, views: bool
    ) -> None:
        """`reduced`: gradients there already are reduced with the new ones; `views`: by a reducer that owns their memory."""
        self._parameters, self._reduced = parameters, reduced
        self._earlier = [(p, p.grad) for p in parameters if p.grad is not None]
        if self._earlier and views:
            self._earlier = [(p, gradient.clone()) for p, gradient in self._earlier]
        self._random = RandomState()
        self._statistics = statistics
        if statistics:
            statistics.keep()
        self._losses = losses
        self._lost = {**vars(losses), "_on_device": list(losses._on_device)}
        self._versions: dict[int, tuple[torch.Tensor, int]] = {}
        self._put_aside()

    def touched(self) -> set[int]:
        """The parameters (by id) to whose gradient something was added since the step began."""
        found = set()
        for parameter in self._parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            given = self._versions.get(id(parameter))
            if given is None or given[0] is not gradient or given[1] != gradient._version:
                found.add(id(parameter))
        return found

    def undo(self) -> None:
        """Put everything back, and make ready for another attempt."""
        self.give_up()
        self._random.put_back()
        self._put_aside()

    def give_up(self) -> None:
        """Leave the gradients, statistics and recorded losses as they were before the step."""
        for parameter in self._parameters:
            parameter.grad = None
        for parameter, gradient in self._earlier:
            parameter.grad = gradient
        if self._statistics:
            self._statistics.put_back()
        vars(self._losses).update({**self._lost, "_on_device": list(self._lost["_on_device"])})

    def join(self) -> None:
        """The step is done: earlier gradients and new ones become one."""
        if self._reduced or not self._earlier:
            return
        olds, news = [], []
        with torch.no_grad():
            for parameter, old in self._earlier:
                new = parameter.grad
                if new is None:
                    parameter.grad = old
                elif old.layout == new.layout == torch.strided:
                    olds.append(old)
                    news.append(new)
                    parameter.grad = old
                else:
                    parameter.grad = old + new
            if olds:
                torch._foreach_add_(olds, news)

    def _put_aside(self) -> None:
        for parameter, gradient in self._earlier:
            parameter.grad = gradient.clone() if self._reduced else None
        if self._reduced and self._earlier:
            self._versions = {id(p): (p.grad, p.grad._version) for p, _ in self._earlier if p.grad is not None}
