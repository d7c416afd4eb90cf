"""One optimizer of a training, and what is remembered of it between steps."""

from __future__ import annotations

import math
import time
import weakref
from typing import Protocol

import torch

from holdfast.inside.gradients.by_address import AVAILABLE, quick_norm
from holdfast.inside.gradients.cuda import GradientKernel
from holdfast.inside.gradients.device_reader import DeviceReader
from holdfast.inside.gradients.host import HostPlan, read_each_on_host
from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.inside.observers import step_columns as at
from holdfast.inside.observers.weights import plain_weights, weight_norms
from holdfast.signals.schema import STEPS

Optimizer = torch.optim.Optimizer
_ALONE, _INNER_ALONE, _KEPT_ROWS = 64, 1000, 16  # steps
_SHARES_AT_MOST = 64  # sets of parameters that a script clips, of which is remembered whose they are


class Reader(Protocol):
    """The training whose gradients are read."""

    def names_of(self, parameters: list[torch.Tensor]) -> list[int]:
        """The codes of those that have a gradient."""

    def reader_for(self, device: torch.device) -> DeviceReader | None:
        """Who brings numbers from this device; None for the host."""

    def charge(self, metric: str, begun: float) -> None:
        """What was done since `begun` is not part of every step."""


class Member:
    """One optimizer of a training, and what is remembered of it between steps."""

    def __init__(self, optimizer: Optimizer, *, is_inner: bool = False) -> None:
        self.optimizer, self.is_inner = weakref.ref(optimizer), is_inner
        self.rows: list[tuple[list[float | int], StepMetrics]] | None = None  # of what may become a training of its own
        self.size = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        self.steps = 0
        self.steps_alone = 0  # since the main optimizer stepped last
        self.rate: float | None = None
        self.kernel: GradientKernel | None = None
        self._reader: DeviceReader | None = None  # of the device that its gradients were on last
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

    @property
    def steps_alone_at_most(self) -> int:
        """After so many steps without the main optimizer it is a training of its own."""
        return _ALONE if not self.is_inner else _INNER_ALONE if self.rows is None else _KEPT_ROWS

    def keep_row(self, metrics: StepMetrics, backwards: int, *, skipped: bool) -> None:
        """Keep what a step would be recorded as."""
        if self.rows is not None:
            row = [column.kind.missing for column in STEPS.columns]
            row[at.STEP], row[at.TIME], row[at.SKIPPED], row[at.BACKWARDS] = len(self.rows), time.time(), int(skipped), backwards
            self.rows.append((row, metrics))

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

    def read(self, parameters: list[torch.Tensor], training: Reader, *, each: bool) -> StepMetrics:
        """Read the gradients of these parameters, all together or each. On the way of every step."""
        if self.quick and not each:
            norm = quick_norm(parameters)
            if norm is not None and 0.0 <= norm < math.inf:
                metrics = StepMetrics(None)
                metrics.norm = norm
                return metrics
            self.quick = norm is not None
        begun = time.perf_counter() if each else 0.0
        kernel = self.kernel
        if kernel is not None and len(self.names) == len(parameters) and self._which is None and kernel.finds(parameters):
            metrics = StepMetrics(self._reader)
            metrics.use_kernel(kernel, self.names, each=each)
            if each:
                self._add_weights(metrics, parameters, training, begun)
            return metrics
        gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
        if not gradients:
            return StepMetrics(None)
        if gradients[0].is_cpu and not each:  # the common step of a training on the host
            metrics = StepMetrics(None)
            if not self.knows(parameters, gradients) or self.plan is None:
                self.names = training.names_of(parameters)
                self.plan = HostPlan(gradients)
            metrics.norm = self.plan.norm(gradients)
            if not math.isfinite(metrics.norm):
                metrics.stats = read_each_on_host(gradients, self.names).only_non_finite()
            return metrics
        self._reader = training.reader_for(gradients[0].device)
        metrics = StepMetrics(self._reader)
        if metrics.reader is not None:
            if not self.knows(parameters, gradients):
                self.names = training.names_of(parameters)
            self.kernel = metrics.read_on_device(gradients, self.names, each=each, kernel=self.kernel)
        else:
            metrics.stats = read_each_on_host(gradients, training.names_of(parameters))
        if each:
            self._add_weights(metrics, parameters, training, begun)
        return metrics

    def _add_weights(self, metrics: StepMetrics, parameters: list[torch.Tensor], training: Reader, begun: float) -> None:
        metrics.add("weights", weight_norms(plain_weights([p for p in parameters if p.grad is not None])))
        training.charge("parameters", begun)


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """All parameters of an optimizer, group by group; must not be changed, it may be the optimizer's own list."""
    groups = optimizer.param_groups
    if len(groups) == 1:
        parameters: list[torch.Tensor] = groups[0]["params"]
        return parameters
    return [parameter for group in groups for parameter in group["params"]]
