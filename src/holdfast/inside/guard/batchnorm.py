"""Running statistics of BatchNorm layers: a bad batch corrupts them in the forward pass, long before the update.

They are kept after each good step and restored when an update is skipped. On a GPU the device decides which.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from itertools import accumulate

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from holdfast.inside.gradients.cuda import Kernel, can_compile, pointer

_LOOK_EVERY = 32  # steps, whether the layers have other buffers


class RunningStatistics:
    """The running statistics of some models after the last good step."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        layers = [m for model in models for m in model.modules() if isinstance(m, _NormBase) and m.track_running_stats]
        self._layers = [weakref.ref(layer) for layer in layers]
        self._kept: list[torch.Tensor] | None = None
        self._on_device: _DeviceCopy | None = None

    def __bool__(self) -> bool:
        return bool(self._layers)

    def forget(self) -> None:
        """Drop what is kept: the script has loaded other statistics."""
        self._kept = self._on_device = None

    def keep(self) -> None:
        """Keep the current statistics."""
        buffers = self._buffers()
        if self._kept is None or not _match(self._kept, buffers):
            self._kept = [buffer.clone() for buffer in buffers]
        else:
            _copy(self._kept, buffers)

    def put_back(self) -> None:
        """Restore what was kept; before the first good step, reset the layers whose statistics are not finite."""
        buffers = self._buffers()
        with torch.no_grad():
            if self._kept is not None and _match(self._kept, buffers):
                _copy(buffers, self._kept)
                return
            for layer in self._alive():
                if not all(buffer.isfinite().all() for buffer in layer._buffers.values() if buffer is not None):
                    layer.reset_running_stats()

    def keep_unless(self, flag: torch.Tensor) -> None:
        """On a GPU: keep the statistics if the flag is 0, restore them if it is 1; without a kernel for that the host waits."""
        if self._on_device is not None and self._on_device.keep_unless(flag, self._buffers):
            return
        self._on_device, buffers = None, self._buffers()
        if can_compile() and flag.is_cuda and all(_is_whole_words(buffer) and buffer.device == flag.device for buffer in buffers):
            self._on_device = _DeviceCopy(buffers, flag.device)
        elif flag.item():
            self.put_back()
        else:
            self.keep()

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer for layer in self._alive() for buffer in layer._buffers.values() if buffer is not None]

    def _alive(self) -> list[_NormBase]:
        return [layer for reference in self._layers if (layer := reference()) is not None]


class _DeviceCopy:
    """Buffers on a GPU and their kept copy, handled by one kernel; its first launch keeps the buffers unconditionally.

    It holds the memory that it writes to, so that it may look only now and then whether the layers still use it.
    """

    def __init__(self, buffers: list[torch.Tensor], device: torch.device) -> None:
        self._held, self._calls = [buffer.untyped_storage() for buffer in buffers], 0
        self._addresses = [buffer.data_ptr() for buffer in buffers]
        lengths = [buffer.nbytes // 4 for buffer in buffers]  # in words of 32 bits
        offsets = list(accumulate(lengths, initial=0))[:-1]
        copy = torch.empty(sum(lengths), dtype=torch.int32, device=device)
        columns = ((self._addresses, torch.int64), (lengths, torch.int32), (offsets, torch.int32))
        self._tables = [torch.tensor(values, dtype=dtype).pin_memory().to(device, non_blocking=True) for values, dtype in columns]
        self._tables.append(copy)
        self._flag = pointer()
        self._kernel = Kernel("keep_unless", device, 256, *map(pointer, self._tables), self._flag)
        self._kernel.launch(len(lengths))

    def keep_unless(self, flag: torch.Tensor, buffers: Callable[[], list[torch.Tensor]]) -> bool:
        """Keep the buffers, or restore them if the flag is set; False if the layers have other buffers by now."""
        self._calls += 1
        if self._calls % _LOOK_EVERY == 0 and [buffer.data_ptr() for buffer in buffers()] != self._addresses:
            return False
        self._flag.value = flag.data_ptr()
        self._kernel.launch(len(self._addresses))
        return True


def _is_whole_words(buffer: torch.Tensor) -> bool:
    return buffer.is_contiguous() and buffer.nbytes % 4 == 0 and buffer.numel() > 0


def _copy(targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Copy with one call per kind of dtype: a mixed list would be copied tensor by tensor.

    Into `.data`, which has its own version counter: a graph that still waits for its backward pass must not see a change.
    """
    for floating in (True, False):
        pairs = [(target, value) for target, value in zip(targets, values, strict=True) if target.is_floating_point() == floating]
        if pairs:
            torch._foreach_copy_([target.data for target, _ in pairs], [value for _, value in pairs])


def _match(kept: list[torch.Tensor], buffers: list[torch.Tensor]) -> bool:
    return len(kept) == len(buffers) and all(
        k.shape == b.shape and k.dtype == b.dtype and k.device == b.device for k, b in zip(kept, buffers, strict=True)
    )
