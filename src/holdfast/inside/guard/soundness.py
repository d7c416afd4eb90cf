"""Whether the weights of a model are sound: finite, and none of them far beyond all others. Asked at a bad update only."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

_FAR, _LARGE = 1e4, 1e3  # times the middle one of its tensor, and at least so large
_NUMBERS = 1 << 28  # that are looked at, at most: the check is made in the way of a step


def look_at_weights(models: Iterable[nn.Module]) -> str:
    """`finite`, or the first parameter with a weight that is not sound; `unknown` where that cannot be looked at."""
    looked_at = 0
    for model in models:
        for name, parameter in model.named_parameters():
            numbers = parameter.detach()
            looked_at += numbers.numel()
            if not _can_be_read(numbers) or looked_at > _NUMBERS:
                return "unknown"
            if numbers.numel() and (words := _wrong_with(numbers)):
                return f"{name}: {words}"
    return "finite" if looked_at else "unknown"


def _can_be_read(numbers: torch.Tensor) -> bool:
    return (
        type(numbers) in (torch.Tensor, nn.Parameter) and numbers.is_cpu and numbers.is_floating_point() and numbers.itemsize > 1
    )


def _wrong_with(numbers: torch.Tensor) -> str:
    sizes = numbers.abs().flatten().float()
    bad = int((~sizes.isfinite()).sum())
    if bad:
        return f"{bad} of {sizes.numel()} weights are NaN or Inf"
    largest, usual = float(sizes.max()), float(sizes.median())
    if largest > _LARGE and largest > _FAR * usual:
        return f"a weight of {largest:.3g}, where {usual:.2g} is usual"
    return ""
