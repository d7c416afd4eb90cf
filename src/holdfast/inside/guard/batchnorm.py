"""Running statistics of normalisation layers: a bad batch spoils them in the forward pass, long before the update.

After each good step they are kept; when an update is skipped they are put back. On a device the choice is made there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from holdfast.inside.gradients.cuda import Kernel, can_compile, pointer


class RunningStatistics:
    """The running statistics of some models, as they were after the last good step."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        layers = [m for model in models for m in model.modules() if isinstance(m, _NormBase) and m.track_running_stats]
        self._layers = [weakref.ref(layer) for layer in layers]
        self._kept: list[torch.Tensor] | None = None
        self._flat: torch.Tensor | None = None
        self._on_device: _OnDevice | None = None

    def __bool__(self) -> bool:
        return bool(self._layers)

    def forget(self) -> None:
        """The script has loaded others: what is kept is not to be put back."""
        self._kept = self._flat = self._on_device = None

    def keep(self) -> None:
        """Keep them as they are now."""
        buffers = self._buffers()
        if self._kept is None or not _alike(self._kept, buffers):
            self._kept = [buffer.clone() for buffer in buffers]
        else:
            _copy(self._kept, buffers)

    def put_back(self) -> None:
        """Put back what was kept. Before the first good step nothing is: statistics that are spoilt begin again."""
        buffers = self._buffers()
        with torch.no_grad():
            if self._kept is not None and _alike(self._kept, buffers):
                _copy(buffers, self._kept)
                return
            for layer in self._living():
                if not all(buffer.isfinite().all() for buffer in layer._buffers.values() if buffer is not None):
                    layer.reset_running_stats()

    def keep_unless(self, flag: torch.Tensor) -> None:
        """On a device: keep them if the flag is 0, put back what was kept if it is 1, without asking which."""
        buffers = self._buffers()
        if self._on_device is not None and self._on_device.fits(buffers):
            self._on_device.keep_unless(flag)
            return
        self._on_device = None
        buffers = [buffer for buffer in buffers if buffer.is_floating_point() or buffer.dtype is torch.int64]
        if not buffers or any(buffer.device != flag.device for buffer in buffers):
            return
        if can_compile() and flag.is_cuda and all(_in_words(buffer) for buffer in buffers):
            self._on_device = _OnDevice(buffers, flag.device)
            return
        with torch.no_grad():
            now = torch.cat([buffer.reshape(-1).double() for buffer in buffers])
            if self._flat is not None and self._flat.shape == now.shape:
                now = torch.where(flag.bool(), self._flat, now)
                pieces = torch.split_with_sizes(now, [buffer.numel() for buffer in buffers])
                _copy(buffers, [p.reshape(b.shape) for p, b in zip(pieces, buffers, strict=True)])
            self._flat = now

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer for layer in self._living() for buffer in layer._buffers.values() if buffer is not None]

    def _living(self) -> list[_NormBase]:
        return [layer for reference in self._layers if (layer := reference()) is not None]


class _OnDevice:
    """Buffers on a GPU and what is kept of them there, by one kernel; the first call of it keeps them whatever they are."""

    def __init__(self, buffers: list[torch.Tensor], device: torch.device) -> None:
        self._addresses = [buffer.data_ptr() for buffer in buffers]
        words = [buffer.nbytes // 4 for buffer in buffers]
        offsets = [sum(words[:number]) for number in range(len(words))]
        kept = torch.empty(sum(words), dtype=torch.int32, device=device)
        numbers = ((self._addresses, torch.int64), (words, torch.int32), (offsets, torch.int32))
        self._tables = [torch.tensor(values, dtype=dtype).pin_memory().to(device, non_blocking=True) for values, dtype in numbers]
        self._tables.append(kept)
        self._flag = pointer()
        self._kernel = Kernel("keep_unless", device, 256, *map(pointer, self._tables), self._flag)
        self._kernel.launch(len(words))

    def fits(self, buffers: list[torch.Tensor]) -> bool:
        """Whether these buffers are those that are kept."""
        return [buffer.data_ptr() for buffer in buffers] == self._addresses

    def keep_unless(self, flag: torch.Tensor) -> None:
        """Keep what they hold, or put back what was kept if the flag is set."""
        self._flag.value = flag.data_ptr()
        self._kernel.launch(len(self._addresses))


def _in_words(buffer: torch.Tensor) -> bool:
    return buffer.is_contiguous() and buffer.nbytes % 4 == 0 and buffer.numel() > 0


def _copy(into: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """All in one call for each type: a mixed list would be copied one by one.

    Into `.data`, which counts its changes apart: a graph that still waits for its backward pass must not find them changed.
    """
    for floating in (True, False):
        pairs = [(a, b) for a, b in zip(into, values, strict=True) if a.is_floating_point() == floating]
        if pairs:
            torch._foreach_copy_([a.data for a, _ in pairs], [b for _, b in pairs])


def _alike(kept: list[torch.Tensor], buffers: list[torch.Tensor]) -> bool:
    return len(kept) == len(buffers) and all(
        k.shape == b.shape and k.dtype == b.dtype and k.device == b.device for k, b in zip(kept, buffers, strict=True)
    )
