"""One optimizer of a training, and what is remembered of it between steps."""

from __future__ import annotations

import weakref

import torch

from holdfast.inside.capture.gradients import HostPlan
from holdfast.inside.capture.gradients_cuda import GradientKernel
from holdfast.inside.capture.quick import AVAILABLE

Optimizer = torch.optim.Optimizer
_SHARES_AT_MOST = 64  # sets of parameters that a script clips, of which is remembered whose they are


class Member:
    """One optimizer of a training, and what is remembered of it between steps."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.size = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        self.steps = 0
        self.steps_alone = 0  # since the main optimizer stepped last
        self.rate: float | None = None
        self.kernel: GradientKernel | None = None
        self.names: list[int] = []
        self.plan: HostPlan | None = None
        self.quick = AVAILABLE  # until its gradients turn out to be of another kind
        self._shares: dict[tuple[int, int, int], tuple[bool, bool]] = {}
        self._which: tuple[int, ...] | None = None

    def knows(self, parameters: list[torch.Tensor], gradients: list[torch.Tensor]) -> bool:
        """Whether its plan and names are those of the gradients that are there now; of experts, others have some each time."""
        every = len(gradients) == len(parameters)
        if every and self._which is None and len(gradients) == len(self.names):
            return True
        which = None if every else tuple(id(parameter) for parameter in parameters if parameter.grad is not None)
        known, self._which = which == self._which and len(gradients) == len(self.names), which
        return known

    def share_in(self, parameters: list[torch.Tensor]) -> tuple[bool, bool]:
        """Whether some of these are this optimizer's, and whether they are exactly those that it trains."""
        key = (len(parameters), id(parameters[0]), id(parameters[-1]))
        known = self._shares.get(key)
        if known is None:
            optimizer = self.optimizer()
            own = {id(p) for p in parameters_of(optimizer) if p.requires_grad} if optimizer is not None else set()
            given = {id(p) for p in parameters if p.requires_grad}
            if len(self._shares) >= _SHARES_AT_MOST:
                self._shares.clear()
            known = self._shares[key] = bool(own & given), own == given
        return known


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """All parameters of an optimizer, group by group; must not be changed, it may be the optimizer's own list."""
    groups = optimizer.param_groups
    if len(groups) == 1:
        parameters: list[torch.Tensor] = groups[0]["params"]
        return parameters
    return [parameter for group in groups for parameter in group["params"]]
