"""The loss as it is given to `backward`: seen there, unscaled, and kept until the optimizer steps.

A step may have several `backward` calls (accumulation); their losses add up, as their gradients do. The next `backward`
after a step opens a new sum. Losses on a GPU stay there: only references to detached scalars are kept.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from holdfast.inside.gradients.host import quick_value

_KEPT_AT_MOST = 256


class Losses:
    """The losses since the last step."""

    def __init__(self) -> None:
        self.count = 0
        self.calls = 0  # of `backward`, since the beginning
        self._on_host: float | None = None
        self._on_device: list[torch.Tensor] = []
        self._used = False
        self._scaled: weakref.ref[torch.Tensor] | None = None
        self._unscaled: torch.Tensor | None = None
        self._scale: torch.Tensor | None = None

    def note_scaling(self, scaled: Any, unscaled: Any, scale: torch.Tensor | None) -> None:
        """Remember what a gradient scaler made of a loss, so that the loss itself can be recorded."""
        if isinstance(scaled, torch.Tensor) and isinstance(unscaled, torch.Tensor):
            self._scaled, self._unscaled, self._scale = weakref.ref(scaled), unscaled.detach(), scale

    def note(self, given: Any) -> None:
        """Take in what `backward` was called on: a scalar, or several."""
        if self._used:
            self.count, self._on_host, self._used = 0, None, False
            self._on_device.clear()
        self.count += 1
        self.calls += 1
        if self._scaled is None and (value := quick_value(given)) is not None:  # the common case
            self._on_host = value if self._on_host is None else value + self._on_host
            return
        for tensor in given if isinstance(given, (tuple, list)) else (given,):
            if isinstance(tensor, torch.Tensor) and tensor.numel() == 1:  # a graph's edge may be given as well
                self._add(tensor if self._scaled is None else self._without_scale(tensor))

    def end_step(self) -> None:
        """An optimizer has stepped: the next `backward` opens a new sum, and may come without a scaler."""
        self._used = True
        self._scaled = self._unscaled = self._scale = None

    @property
    def accumulating(self) -> bool:
        """Whether gradients of a `backward` wait for their update."""
        return self.count > 0 and not self._used

    def total(self) -> float | torch.Tensor | None:
        """The summed loss: a number, or a tensor on the device where it is; None if no scalar was seen."""
        self._used = True
        if not self._on_device:
            return self._on_host
        rest = self._on_device[0] if len(self._on_device) == 1 else torch.stack(self._on_device).sum()
        return rest if self._on_host is None else rest + self._on_host

    def _without_scale(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._scaled is not None and self._scaled() is tensor and self._unscaled is not None:
            return self._unscaled
        if self._scale is not None:  # scaled, then divided or added to something
            return tensor.detach() / self._scale.to(tensor.device, non_blocking=True)
        return tensor

    def _add(self, loss: torch.Tensor) -> None:
        if loss.is_cpu:
            self._on_host = loss.item() + (self._on_host or 0.0)
            return
        if len(self._on_device) >= _KEPT_AT_MOST:
            self._on_device = [torch.stack(self._on_device).sum()]
        loss = loss.detach()
        self._on_device.append(loss if loss.dtype is torch.float32 and not loss.dim() else loss.reshape(()).float())
