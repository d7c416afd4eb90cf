"""All gradients on a GPU, read once in one kernel: sum of squares, largest value and non-finite count of each tensor.

Where torch cannot compile the kernel (older than 2.9), the multi-tensor norm does the same work in more launches and without the
counts. The addresses of the gradients may change from step to step; the lists of the last steps stay on the device, so that one
that comes again, as it mostly does, is not sent again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from holdfast.inside.gradients.by_address import quick_addresses
from holdfast.inside.gradients.cuda_kernels import SENDING, Kernel, can_compile, index_of, pointer
from holdfast.inside.gradients.host import is_plain
from holdfast.state.host_memory import pinned_zeros

_CHUNK = 65536
_THREADS = 512
_TABLES = 8
_KINDS = (torch.float32, torch.bfloat16, torch.float16)


class _Table:
    """A list of addresses, on the host and on the device."""

    def __init__(self, count: int, device: torch.device) -> None:
        self._pinned, self.on_device = pinned_zeros(count, torch.int64), torch.empty(count, dtype=torch.int64, device=device)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def send(self, addresses: bytes) -> None:
        """Copy addresses to the device; the copy of others, some steps ago, is waited for if need be."""
        if not self._event.query():  # type: ignore[no-untyped-call]
            self._event.synchronize()
        self._pinned.numpy()[:] = np.frombuffer(addresses, np.int64)
        self.on_device.copy_(self._pinned, non_blocking=True)
        self._event.record(torch.cuda.current_stream(self.on_device.device))


class GradientKernel:
    """Reads one set of tensors, always of the same sizes and kinds, wherever they lie this time."""

    def __init__(self, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        self.device, self.count = device, len(tensors)
        self._gpu = index_of(device)
        self._sizes = np.array([tensor.numel() for tensor in tensors], np.int64)
        self._dtypes = [tensor.dtype for tensor in tensors]
        self._kinds = np.array([_KINDS.index(dtype) for dtype in self._dtypes], np.int32)
        chunks = [-(-tensor.numel() // _CHUNK) for tensor in tensors]
        pairs = [number for n, several in enumerate(chunks) for chunk in range(several) for number in (n, chunk)]
        self._blocks = sum(chunks)
        fixed = [self._sizes, self._kinds, np.array(pairs, np.int32)]
        self._fixed = [torch.from_numpy(values).pin_memory().to(device, non_blocking=True) for values in fixed]
        self._fixed.append(torch.zeros(1, dtype=torch.int32, device=device))
        self.out = torch.zeros(3 * self.count, dtype=torch.float32, device=device)  # made 0 again by who takes the numbers
        self.is_read = False  # whether numbers are in it, or will be
        self._table = pointer()
        self.sending = ctypes.create_string_buffer(SENDING.size)
        arguments = self._table, *map(pointer, self._fixed), ctypes.c_int(_CHUNK), self.sending
        self._kernel = Kernel("read_gradients", device, _THREADS, *arguments)
        self._free = [_Table(self.count, device) for _ in range(_TABLES)]
        self._tables: dict[bytes, _Table] = {}
        self._here = bytearray(8 * self.count)
        self._addresses = b""

    def finds(self, parameters: list[torch.Tensor]) -> bool:
        """Whether all these parameters have gradients of the sizes and kinds it was made for: the quick way to `fits`."""
        found = quick_addresses(parameters, self._gpu, self._sizes, self._kinds, self._here)
        if found:
            self._addresses = bytes(self._here)
        return found

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these tensors are of the sizes and kinds it was made for, and none has gaps."""
        self._addresses = np.array([tensor.data_ptr() for tensor in tensors], np.int64).tobytes()
        return (
            [tensor.numel() for tensor in tensors] == self._sizes.tolist()
            and [tensor.dtype for tensor in tensors] == self._dtypes
            and all([tensor.is_contiguous() or _dense(tensor) for tensor in tensors])  # noqa: C419 - a generator costs twice
        )

    def read(self) -> None:
        """Start to read the tensors that were found last; the numbers wait in `out`."""
        SENDING.pack_into(self.sending, 0, self.out.data_ptr(), *[0] * 12, 0, self.count, 0, 0, 0)
        self.launch()
        self.is_read = True

    def launch(self) -> None:
        """Start to read the tensors that were found last, and do with the numbers what `sending` says."""
        table = self._tables.get(self._addresses)
        if table is None:
            table = self._free.pop() if self._free else self._tables.pop(next(iter(self._tables)))
            table.send(self._addresses)
            self._tables[self._addresses] = table
        if self.is_read:  # for a step that raised
            self.out.zero_()
        self.is_read = False
        self._table.value = table.on_device.data_ptr()
        self._kernel.launch(self._blocks)


def can_be_read_by_kernel(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether torch can compile the kernel here and the tensors are plain ones of a known kind, all on one GPU."""
    return (
        can_compile()
        and bool(tensors)
        and all(is_plain(t) and t.is_cuda and t.dtype in _KINDS and t.numel() and _dense(t) for t in tensors)
        and len({t.get_device() for t in tensors}) == 1
    )


def _dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's values fill its memory without gaps; an expanded one must never be read by address."""
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def read_with_foreach(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """The same vector by the multi-tensor norm; counts and maxima are not known (-1)."""
    norms = [n.to(device, torch.float32, non_blocking=True) for n in torch._foreach_norm(list(tensors))]
    unknown = torch.full((2 * len(norms),), -1.0, device=device)
    return torch.cat([torch.stack(norms).square(), unknown])
