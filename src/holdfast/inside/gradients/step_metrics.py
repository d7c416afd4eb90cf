"""The numbers of one optimizer step, wherever they lie, handed over when they are known.

On the host they are known at once. On a GPU the device reader sends them, and they come back a step or so later;
the step that asked for them is long done by then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from holdfast.inside.gradients.cuda import GradientKernel, can_be_read_by_kernel, read_with_foreach
from holdfast.inside.gradients.device_reader import PLACES, DeviceReader, Transfer, own_values
from holdfast.inside.gradients.host import GradientStats, PerParameter, values_of
from holdfast.inside.observers.parameters import Change


class StepMetrics:
    """One step's numbers. Host values are set as attributes; values on a device are sent, and set when they arrive."""

    _scalars: dict[str, torch.Tensor] | None = None  # defaults on the class: an instance sets only what it has
    _vectors: dict[str, torch.Tensor] | None = None
    _kernel: GradientKernel | None = None  # that has read the gradients on the device
    _row: Transfer | None = None  # once the scalars and what was read are on their way
    _in_row: tuple[str, ...] = ()
    _rest: Mapping[str, torch.Tensor] = MappingProxyType({})
    _when_ready: Callable[[StepMetrics], None]
    _names: list[int]
    _each: bool
    stats: GradientStats | None = None
    weights: Any = None  # norms
    has_each_weight = False  # whether the first of them are those of the parameters that have a gradient, in their order
    loss: float | None = None
    lr: float | None = None
    norm: float | None = None
    scale: float | None = None
    grad_scale: float | None = None
    found_inf: float | None = None
    update_ratio: float | None = None
    untrained: tuple[Change, ...] = ()
    backwards = 1  # passes whose gradients these are
    evidence: dict[str, Any] | None = None  # what a loss that is not finite was computed from

    def __init__(self, reader: DeviceReader | None) -> None:
        self.reader = reader  # who brings the numbers that lie on a device, if there are some

    @property
    def gradient_norm(self) -> float | None:
        """Norm of all gradients, as it was read or as the script computed it."""
        return self.stats.norm if self.stats is not None else self.norm

    @property
    def has_bad_gradient(self) -> bool:
        """Whether gradients are known not to be finite; having none is not bad."""
        norm = self.gradient_norm
        return (self.stats is not None and self.stats.non_finite > 0) or (norm is not None and not math.isfinite(norm))

    @property
    def has_bad_loss(self) -> bool:
        """Whether the loss is known not to be finite."""
        return self.loss is not None and not math.isfinite(self.loss)

    def add(self, name: str, value: Any) -> None:
        """Add one number, or a vector named `weights`, that may be a tensor anywhere; one that is not this rank's stays out."""
        if not isinstance(value, torch.Tensor):
            setattr(self, name, value)
            return
        own = value if type(value) is torch.Tensor else own_values(value)
        if own is None:
            return
        if own.requires_grad:
            own = own.detach()
        if self.reader is None or own.is_cpu:
            setattr(self, name, own.cpu().double().numpy() if own.dim() else own.item())
        elif self._row is not None and value is self._row.flag:
            self._in_row = (*self._in_row, name)
        elif name in PLACES and self.reader.takes(own):
            if self._scalars is None:
                self._scalars = {}
            self._scalars[name] = own
        else:
            self._send_vector(name, own)

    def add_loss(self, loss: float | torch.Tensor | None) -> None:
        """Add the loss; one on the device is a detached scalar of single precision."""
        if self.reader is not None and type(loss) is torch.Tensor and loss.get_device() == self.reader.index:
            self._scalars = {**self._scalars, "loss": loss} if self._scalars else {"loss": loss}
        else:
            self.add("loss", loss)

    def use_kernel(self, kernel: GradientKernel, names: list[int], *, each: bool) -> None:
        """Read the gradients that the kernel has found, as soon as `start` is called."""
        self._kernel, self._names, self._each = kernel, names, each

    def read_on_device(
        self, gradients: list[torch.Tensor], names: list[int], *, each: bool, kernel: GradientKernel | None
    ) -> GradientKernel | None:
        """Read all gradients on the GPU once, as soon as `start` is called; gives the kernel to use next time."""
        assert self.reader is not None
        if kernel is None or not kernel.fits(gradients):
            kernel = GradientKernel(gradients, self.reader.device) if can_be_read_by_kernel(gradients) else None
        if kernel is not None and kernel.fits(gradients):
            self.use_kernel(kernel, names, each=each)
        else:
            self._names, self._each = names, each
            self._send_vector("stats", read_with_foreach([values_of(gradient) for gradient in gradients], self.reader.device))
        return kernel

    def start(self, *, alone: bool = False) -> None:
        """Start to read the gradients and to send what is known; alone: only read them, as they are about to be changed."""
        if alone:
            if self._kernel is not None:
                self._kernel.read()
        elif self._row is None and (self._scalars or self._kernel is not None):
            self._send_row(with_loss=False)

    def flag(self, *, with_loss: bool) -> torch.Tensor | None:
        """A scalar on the device: 1 if the gradients, or the loss, are not finite, else 0; None if nothing was read there."""
        scalars, vectors = self._scalars or {}, self._vectors or {}
        if self._kernel is not None or ("norm" in scalars and "stats" not in vectors):
            self._send_row(with_loss=with_loss)
            if self._row is not None:
                return self._row.flag
        if "stats" in vectors:
            squares = vectors["stats"]
            wrong = squares[: squares.numel() // 3].sum() * 0.0  # not finite times zero is not a number
        elif "norm" in scalars:
            wrong = scalars["norm"].float().reshape(()) * 0.0
        else:
            return None
        if with_loss and "loss" in scalars:
            wrong = wrong + scalars["loss"].float().reshape(()) * 0.0
        return wrong.ne(0.0).float()

    def finish(self, when_ready: Callable[[StepMetrics], None]) -> None:
        """Call `when_ready` with the numbers: now, or when they have arrived."""
        if self._row is None:
            self.start()
        row, scalars, vectors = self._row, self._scalars, self._vectors
        if scalars or vectors:
            self._rest = {**(scalars or {}), **(vectors or {})}
        if self.reader is None or (row is None and not self._rest):
            when_ready(self)
            return
        self._when_ready, self._scalars, self._vectors, self._kernel, self._row = when_ready, None, None, None, None
        self.reader.send(row, list(self._rest.values()) if self._rest else (), self._arrived)

    def _arrived(self, transfer: Transfer) -> None:
        if transfer.header is not None:
            self._take_row(transfer, transfer.header)
        if transfer.rest is not None:
            self._take_rest(transfer.rest)
        self._when_ready(self)

    def _send_row(self, *, with_loss: bool) -> None:
        """Send the scalars that are known so far and what was read of the gradients; what is added later goes another way."""
        assert self.reader is not None
        scalars = self._scalars or {}
        self._row = self.reader.send_row(scalars, self._kernel, with_loss=with_loss)
        if self._row is not None:
            self._in_row, self._scalars = tuple(scalars), None

    def _send_vector(self, name: str, value: torch.Tensor) -> None:
        self._vectors = self._vectors or {}
        self._vectors[name] = value

    def _take_row(self, row: Transfer, header: list[float]) -> None:
        for name in self._in_row:
            setattr(self, name, header[PLACES[name]])
        if row.tensors:
            norm, bad = math.sqrt(header[1]), int(header[2])
            if self._each or bad:
                stats = GradientStats(norm, bad, _of_each(row.each(), self._names))
                self.stats = stats if self._each else stats.only_non_finite()
            else:
                self.stats = GradientStats(norm)

    def _take_rest(self, values: Any) -> None:
        start = 0
        for name, tensor in self._rest.items():
            part = values[start : start + tensor.numel()]
            start += tensor.numel()
            if name == "stats":
                self.stats = _reading(part, self._names, each=self._each)
            else:
                setattr(self, name, part if name == "weights" else float(part[0]))


def _of_each(vectors: Any, names: list[int]) -> PerParameter:
    squares, maxima, bad = vectors
    return PerParameter(np.asarray(names, np.int64), np.sqrt(squares), maxima, bad.astype(np.int64))


def _reading(vector: Any, names: list[int], *, each: bool) -> GradientStats:
    """What a vector of sums of squares, without counts and maxima, says."""
    squares, maxima, bad = vector.reshape(3, -1)
    bad = np.where((bad < 0) & ~np.isfinite(squares), -1, np.maximum(bad, 0)).astype(np.int64)
    norm, wrong = float(np.sqrt(squares.sum())), int((bad != 0).sum())
    if not each and not wrong:
        return GradientStats(norm)
    details = PerParameter(np.asarray(names, np.int64), np.sqrt(squares), maxima, bad)
    return GradientStats(norm, wrong, details if each else details.only(bad != 0))
