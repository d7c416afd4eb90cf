"""Which channels are hidden, and how far predictions are from the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from holdfast.train.sensors.array import Target
from holdfast.train.sensors.model import FILLED

_FAR = 10.0  # a beta that is so many times the typical error, or so small a part of it, makes another loss of smooth L1
_BETA = 0.1  # of reconstructions, in spreads of a channel


def hidden_channels(valid: torch.Tensor, fraction: float, index: torch.Tensor | None = None) -> torch.Tensor:
    """Hide this fraction of the valid sensors of each event: at random, or for an event's `index` always the same ones."""
    usable = valid.any(dim=1)
    score = torch.rand(usable.shape, device=usable.device) if index is None else _scores(index, usable.shape[1])
    rank = score.masked_fill(~usable, 2**32).argsort(dim=1).argsort(dim=1)
    count = (usable.sum(dim=1, keepdim=True) * fraction).round().clamp(min=1)
    return (rank < count) & usable


def _scores(index: torch.Tensor, sensors: int) -> torch.Tensor:
    """A number below 2^31 for each event and sensor, on every device and rank the same."""
    mixed = index[:, None] * sensors + torch.arange(sensors, device=index.device)
    for _ in range(3):
        mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0x7FFFFFFF
    return mixed


def fill_loss(outputs: Mapping[str, torch.Tensor], hidden: torch.Tensor, loss_fn: str, beta: float | None) -> torch.Tensor:
    """The loss of each event: the mean over its hidden channels, in spreads of a channel."""
    wanted = outputs["valid"] & hidden[:, None]
    each = distance(outputs[FILLED].float() - outputs["truth"], loss_fn, beta or _BETA) * wanted
    return each.sum(dim=(1, 2)) / wanted.sum(dim=(1, 2)).clamp(min=1)


def target_losses(outputs: Mapping[str, torch.Tensor], wanted: torch.Tensor, targets: Sequence[Target]) -> list[torch.Tensor]:
    """The loss of each event for each target, in spreads of the target. A truth that is not finite counts 0."""
    losses = []
    for target, truth in zip(targets, torch.split(wanted, [other.size for other in targets], dim=1), strict=True):
        scale = target.scale or 1.0
        normal = (truth - (target.offset or 0.0)) / scale
        finite = normal.isfinite()
        error = torch.where(finite, outputs[target.name].float() - normal.nan_to_num(0.0, 0.0, 0.0), 0.0)
        losses.append(distance(error, target.loss_fn, target.beta / scale).mean(dim=1))
    return losses


def distance(error: torch.Tensor, loss_fn: str, beta: float) -> torch.Tensor:
    """The loss of every value."""
    if loss_fn == "mse":
        return error.square()
    return (
        error.abs()
        if loss_fn == "l1" or beta == 0
        else F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none", beta=beta)
    )


def beta_words(target: Target, typical: float, *, is_final: bool) -> str | None:
    """What is wrong with the beta of a target, given its typical error. Errors above beta are normal until the end."""
    if target.loss_fn != "smooth_l1" or typical <= 0:
        return None
    suggested = f"loss_beta: {float(f'{typical:.1g}'):g}"
    if target.beta > _FAR * typical:
        shape = f"nearly always quadratic; set {suggested}, or loss_fn: l1"
    elif is_final and target.beta * _FAR < typical:
        shape = f"nearly always linear; set {suggested}, or loss_fn: l1 if that is meant"
    else:
        return None
    return f"{target.name}: loss_beta is {target.beta:.3g}, the typical error {typical:.3g}: smooth L1 is {shape}"
