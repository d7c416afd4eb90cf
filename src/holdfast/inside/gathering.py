"""The numbers of one optimizer step, wherever they lie, handed over when they are known.

On the host they are known at once. On a GPU they are put on their way with the courier and come back a step or so later;
the step that asked for them is long done by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from holdfast.inside.capture.device import Courier, own_values
from holdfast.inside.capture.gradients import EachParameter, Reading, values_of
from holdfast.inside.capture.gradients_cuda import GradientKernel, can_be_read_by_kernel, read_with_foreach
from holdfast.inside.capture.untrained import Change

Names = Callable[[], list[int]]


class Gathering:
    """One step's numbers. Host values are set as attributes; values on a device are sent, and set when they arrive."""

    _sent: list[tuple[str, torch.Tensor]] | None = None  # defaults on the class: an instance sets only what it has
    _names: list[int]
    _each: bool
    _counted = False  # whether what was read on the device has counts of bad values
    reading: Reading | None = None
    weights: Any = None
    loss: float | None = None
    lr: float | None = None
    norm: float | None = None
    scale: float | None = None
    grad_scale: float | None = None
    found_inf: float | None = None
    update_ratio: float | None = None
    untrained: tuple[Change, ...] = ()

    def __init__(self, courier: Courier | None) -> None:
        self._courier = courier

    @property
    def courier(self) -> Courier | None:
        """Who brings the numbers that lie on a device."""
        return self._courier

    @property
    def carries(self) -> bool:
        """Whether numbers on a device can be sent for."""
        return self._courier is not None

    def add(self, name: str, value: Any) -> None:
        """Add one number, or a vector named `weights`, that may be a tensor anywhere; one that is not this rank's stays out."""
        if not isinstance(value, torch.Tensor):
            setattr(self, name, value)
            return
        own = own_values(value)
        if own is None:
            return
        own = own.detach()
        if self._courier is not None and not own.is_cpu:
            self._send(name, own)
        else:
            setattr(self, name, own.double().cpu().numpy() if own.dim() else own.item())

    def read_on_device(
        self, gradients: list[torch.Tensor], names: list[int], *, each: bool, kernel: GradientKernel | None
    ) -> GradientKernel | None:
        """Read all gradients on the GPU once; gives the kernel to use next time."""
        assert self._courier is not None
        self._names, self._each = names, each
        if kernel is None or not kernel.fits(gradients):
            kernel = GradientKernel(gradients, self._courier.device) if can_be_read_by_kernel(gradients) else None
        if kernel is not None:
            vector = kernel.launch()
            self._counted = True
        else:
            vector = read_with_foreach([values_of(gradient) for gradient in gradients], self._courier.device)
        if vector is not None:
            self._send("reading", vector)
        return kernel

    def flag(self, *, with_loss: bool) -> torch.Tensor | None:
        """A scalar on the device: 1 if the gradients, or the loss, are not finite, else 0; None if nothing was read there."""
        sent = dict(self._sent or ())
        if "reading" in sent:
            third = sent["reading"].numel() // 3
            wrong = sent["reading"][2 * third :].sum() if self._counted else sent["reading"][:third].sum() * 0.0
        elif "norm" in sent:
            wrong = sent["norm"].float().reshape(()) * 0.0
        else:
            return None
        if with_loss and "loss" in sent:
            wrong = wrong + sent["loss"].to(wrong.device).float().reshape(()) * 0.0  # not finite times zero is not a number
        return wrong.ne(0.0).float()

    def finish(self, known: Callable[[Gathering], None]) -> None:
        """Call `known` with the numbers: now, or when they have arrived."""
        if self._courier is None or self._sent is None:
            known(self)
            return
        names = [(name, tensor.numel()) for name, tensor in self._sent]
        tensors = [tensor for _, tensor in self._sent]
        self._sent = None

        def arrived(values: Any) -> None:
            self._unpack(names, values)
            known(self)

        self._courier.send(tensors, arrived)

    def _send(self, name: str, value: torch.Tensor) -> None:
        if self._sent is None:
            self._sent = []
        self._sent.append((name, value))

    def _unpack(self, names: list[tuple[str, int]], values: Any) -> None:
        if values is None:
            return
        start = 0
        for name, size in names:
            part = values[start : start + size]
            start += size
            if name == "reading":
                self.reading = _reading(part, self._names, each=self._each)
            else:
                setattr(self, name, part if name == "weights" else float(part[0]))


def _reading(vector: Any, names: list[int], *, each: bool) -> Reading:
    """What a vector of sums of squares, maxima and counts says."""
    squares, maxima, bad = vector.reshape(3, -1)
    bad = np.where((bad < 0) & ~np.isfinite(squares), -1, np.maximum(bad, 0)).astype(np.int64)
    norm, wrong = float(np.sqrt(squares.sum())), int((bad != 0).sum())
    if not each and not wrong:
        return Reading(norm)
    details = EachParameter(np.asarray(names, np.int64), np.sqrt(squares), maxima, bad)
    return Reading(norm, wrong, details if each else details.only(bad != 0))
