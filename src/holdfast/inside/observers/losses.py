"""The loss that `backward` was called on, unscaled, summed until the optimizer steps.

With gradient accumulation the losses of a step add up, as their gradients do. The first `backward` after a step starts a new
sum. Losses on a GPU stay there: only detached scalars are kept.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import torch

from holdfast.inside.gradients.host import quick_value

_Tensor = torch.Tensor
_MAX_KEPT = 256
_MAX_INSPECTED = 8  # bad losses, for each thread


class Losses:
    """The losses since the last step."""

    def __init__(self) -> None:
        self.count = 0
        self.calls = 0  # of `backward`, in total
        self.on_host: float | None = None
        self._on_device: list[torch.Tensor] = []
        self.is_complete = False  # the next `backward` starts a new sum
        self._scaled: weakref.ref[torch.Tensor] | None = None
        self._unscaled: torch.Tensor | None = None
        self.evidence: dict[str, Any] | None = None  # of the first loss since the last step that was not finite, on the host
        self._inspected = 0
        self._scale: torch.Tensor | None = None

    def note_scaling(self, scaled: Any, unscaled: Any, scale: torch.Tensor | None) -> None:
        """Remember the loss behind a scaled loss, so that the unscaled one is recorded."""
        if isinstance(scaled, torch.Tensor) and isinstance(unscaled, torch.Tensor):
            self._scaled, self._unscaled, self._scale = weakref.ref(scaled), unscaled.detach(), scale

    def note_common(self, tensors: Any) -> bool:
        """The same for the only loss of a step, a sound number of the same device as before; whether it was one."""
        if not self.is_complete or self._scaled is not None:
            return False
        if self._on_device:
            if type(tensors) is not _Tensor or tensors.is_cpu or tensors.dtype is not torch.float32 or tensors.dim():
                return False
            self._on_device = [tensors.detach()]
        else:
            value = quick_value(tensors)
            if value is None or value - value != 0.0:  # 0.0, unless it is not finite
                return False
            self.on_host = value
        self.count, self.is_complete, self.evidence = 1, False, None
        self.calls += 1
        return True

    def note(self, tensors: Any) -> None:
        """Add what `backward` was called on: a scalar, or several."""
        if self.is_complete:
            self.count, self.on_host, self.is_complete, self.evidence = 0, None, False, None
            self._on_device = []
        self.count += 1
        self.calls += 1
        if self._scaled is None and (value := quick_value(tensors)) is not None:
            self.on_host = value if self.on_host is None else value + self.on_host
            if value - value != 0.0:
                self._inspect(tensors)
            return
        for tensor in tensors if isinstance(tensors, (tuple, list)) else (tensors,):
            if isinstance(tensor, torch.Tensor) and tensor.numel() == 1:  # it may also be a GradientEdge
                self._add(tensor if self._scaled is None else self._unscale(tensor), tensor)

    def end_step(self) -> None:
        """An optimizer has stepped: the next `backward` starts a new sum, and may come without a scaler."""
        self.is_complete = True
        self._scaled = self._unscaled = self._scale = None

    def forget_sum(self) -> None:
        """What was summed so far were steps of their own, of updates without an optimizer."""
        self.count, self.on_host = 1, None
        self._on_device.clear()

    @property
    def accumulating(self) -> bool:
        """Whether gradients are waiting for their update."""
        return self.count > 0 and not self.is_complete

    def total(self) -> float | torch.Tensor | None:
        """The summed loss: a float, or a tensor on its device; None if there was no scalar."""
        self.is_complete = True
        if not self._on_device:
            return self.on_host
        total = self._on_device[0] if len(self._on_device) == 1 else torch.stack(self._on_device).sum()
        return total if self.on_host is None else total + self.on_host

    def _unscale(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._scaled is not None and self._scaled() is tensor and self._unscaled is not None:
            return self._unscaled
        if self._scale is not None:  # scaled, then divided or added to something
            return tensor.detach() / self._scale.to(tensor.device, non_blocking=True)
        return tensor

    def _inspect(self, loss: Any) -> None:
        """Look at what a bad loss was computed from, before the backward pass frees it."""
        if self.evidence is None and self._inspected < _MAX_INSPECTED:
            from holdfast.inside.guard.failure_context import bad_loss_evidence  # waits until it is needed

            self._inspected += 1
            with contextlib.suppress(Exception):  # the finding is written without what cannot be determined
                self.evidence = bad_loss_evidence(loss)

    def _add(self, loss: torch.Tensor, source: torch.Tensor) -> None:
        if loss.is_cpu:
            value = loss.item()
            self.on_host = value + (self.on_host or 0.0)
            if value - value != 0.0:
                self._inspect(source)
            return
        loss = loss.detach()
        self._keep(loss if loss.dtype is torch.float32 and not loss.dim() else loss.reshape(()).float())

    def _keep(self, loss: torch.Tensor) -> None:
        if len(self._on_device) >= _MAX_KEPT:
            self._on_device = [torch.stack(self._on_device).sum()]
        self._on_device.append(loss)
