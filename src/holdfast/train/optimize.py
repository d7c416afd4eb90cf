"""What changes the weights: optimizer, schedule with warm-up, averaged weights, mixed precision."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from holdfast.train.settings import TrainSettings

_STEP_AT, _STEP_FACTOR = (0.6, 0.85), 0.1  # schedule `step`: the learning rate falls to a tenth at 60 % and 85 % of the run
_EMA_RAMP = 2000.0  # updates: the average follows quickly at first


def make_optimizer(model: nn.Module, settings: TrainSettings, lr: float) -> torch.optim.Optimizer:
    """The optimizer; biases and normalisation layers are not decayed."""
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            (decayed if parameter.ndim > 1 else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    if settings.optimizer == "sgd":  # not fused: that fails on parameters that are first trained later than others
        return torch.optim.SGD(groups, lr=lr, momentum=settings.momentum, nesterov=settings.momentum > 0)
    fused = next(model.parameters()).device.type == "cuda"
    return torch.optim.AdamW(groups, lr=lr, betas=(settings.momentum, 0.999), fused=fused)


class Schedule(LRScheduler):
    """Learning rate and momentum of every update: in each stage a warm-up, then the chosen curve down to the stage's end."""

    def __init__(self, optimizer: torch.optim.Optimizer, settings: TrainSettings, updates_per_epoch: int) -> None:
        self._kind, peak = settings.scheduler, float(optimizer.param_groups[0]["lr"])
        self._parts, self._peak = [], peak
        for stage in settings.stages:
            total = max(1, stage.epochs * updates_per_epoch)
            warmup = min(round(settings.warmup_epochs * updates_per_epoch), total // 2)
            self._parts.append(_Part(total, warmup, (stage.lr or peak) / peak, stage.final))
        self._momentum, self._first_momentum = settings.momentum, min(settings.warmup_momentum, settings.momentum)
        super().__init__(optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Where it is. Without what comes from the settings: they may differ when it is resumed."""
        own = ("_kind", "_parts", "_momentum", "_first_momentum")
        return {name: value for name, value in super().state_dict().items() if name not in own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where it was; with another peak than before, all learning rates are scaled."""
        peak = self._peak
        super().load_state_dict({**state_dict, "_peak": peak})
        if (before := state_dict.get("_peak", peak)) != peak:
            self.base_lrs = [base * peak / before for base in self.base_lrs]

    def get_lr(self) -> list[float | torch.Tensor]:
        """The learning rate of each group at this update."""
        return [base * self.factor(self.last_epoch) for base in self.base_lrs]

    def factor(self, update: int) -> float:
        """The learning rate of an update, as a fraction of the peak of the first stage."""
        update, part = self._place(update)
        if update < part.warmup:
            return part.peak * (update + 1) / part.warmup
        done = min((update - part.warmup) / max(1, part.total - part.warmup), 1.0)
        if self._kind == "constant":
            return part.peak
        if self._kind == "step":
            return part.peak * max(part.final, _STEP_FACTOR ** sum(done >= at for at in _STEP_AT))
        curve = (1 + math.cos(math.pi * done)) / 2 if self._kind == "cosine" else 1 - done
        return part.peak * (part.final + (1 - part.final) * curve)

    def _place(self, update: int) -> tuple[int, _Part]:
        """Which update of which stage it is."""
        for part in self._parts[:-1]:
            if update < part.total:
                return update, part
            update -= part.total
        return update, self._parts[-1]

    def step(self, epoch: int | None = None) -> None:
        """Set the learning rate and the momentum of the next update."""
        super().step(epoch)
        update, part = self._place(self.last_epoch)
        if part.warmup and update <= part.warmup:
            momentum = self._first_momentum + (self._momentum - self._first_momentum) * update / part.warmup
            for group in self.optimizer.param_groups:
                if "betas" in group:
                    group["betas"] = (momentum, group["betas"][1])
                else:
                    group["momentum"] = momentum


class _Part(NamedTuple):
    """A stage, counted in updates; `peak` is a fraction of the peak of the first stage."""

    total: int
    warmup: int
    peak: float
    final: float


class Ema(nn.Module):
    """Averaged weights of a model; buffers are copied. A module, so that checkpoints hold it like one."""

    n_averaged: torch.Tensor

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__()
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self.register_buffer("n_averaged", torch.zeros((), dtype=torch.int64))
        self._decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move the average towards the model after an update."""
        self.n_averaged += 1
        decay = self._decay * (1 - math.exp(-int(self.n_averaged) / _EMA_RAMP))
        averaged = [parameter.detach() for parameter in self.module.parameters()]
        current = [parameter.detach() for parameter in model.parameters()]
        torch._foreach_lerp_(averaged, current, 1 - decay)
        if buffers := list(self.module.buffers()):
            torch._foreach_copy_(buffers, list(model.buffers()))


class Precision:
    """Mixed precision: autocast, and a scaler where fp16 needs one."""

    def __init__(self, half: str, device: torch.device) -> None:
        self._device = device
        self._dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(half)
        self.scaler = torch.amp.GradScaler(device.type) if half == "fp16" and device.type == "cuda" else None

    def autocast(self) -> torch.autocast:
        """The context of a forward pass."""
        return torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not None)


def trained_parameters(optimizer: torch.optim.Optimizer) -> Iterator[nn.Parameter]:
    """All parameters of an optimizer."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
