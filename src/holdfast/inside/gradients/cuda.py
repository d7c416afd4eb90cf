"""All gradients on a GPU, read once in one kernel: sum of squares, largest value and non-finite count of each tensor.

Where torch cannot compile the kernel (older than 2.9), the multi-tensor norm does the same work in more launches and without the
counts. The addresses of the gradients change from step to step; they are part of the kernel's arguments.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.inside.gradients.host import is_plain, launch_by_address, quick_addresses

_CHUNK = 65536
_THREADS = 512
_AT_ONCE = 480  # tensors; their addresses and the other arguments fit into the 4096 bytes that a kernel takes
_KINDS = (torch.float32, torch.bfloat16, torch.float16)


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
        fixed = [self._sizes, self._kinds, np.array(pairs, np.int32)]
        self._fixed = [torch.from_numpy(values).pin_memory().to(device, non_blocking=True) for values in fixed]
        self._fixed.append(torch.zeros(1, dtype=torch.int32, device=device))
        self.out = torch.zeros(3 * self.count, dtype=torch.float32, device=device)  # made 0 again by who takes the numbers
        self.out_at = self.out.data_ptr()
        self.is_read = False  # whether numbers are in it, or will be
        self.sending = ctypes.create_string_buffer(SENDING.size)
        self._only_reading = ctypes.create_string_buffer(SENDING.size)
        for sending in (self.sending, self._only_reading):
            SENDING.pack_into(sending, 0, self.out_at, *[0] * 12, 0, self.count, 0, 0, 0)
        several = bytearray(8 * -(-self.count // _AT_ONCE) * _AT_ONCE)
        self._addresses = memoryview(several)[: 8 * self.count]
        self._launches = list(self._prepare(chunks, several))

    def _prepare(self, chunks: list[int], addresses: bytearray) -> Iterator[tuple[Kernel, int]]:
        """A kernel and its number of blocks for each part of the list of addresses; the last one sends the numbers."""
        sizes, kinds, where, ended = self._fixed
        before = 0
        for first in range(0, self.count, _AT_ONCE):
            blocks, is_last = sum(chunks[first : first + _AT_ONCE]), first + _AT_ONCE >= self.count
            part = (ctypes.c_char * (8 * _AT_ONCE)).from_buffer(addresses, 8 * first)
            from_here = ctypes.c_void_p(where.data_ptr() + 8 * before)
            sending = self.sending if is_last else self._only_reading
            arguments = part, pointer(sizes), pointer(kinds), from_here, pointer(ended), ctypes.c_int(_CHUNK), sending
            yield Kernel("read_gradients", self.device, _THREADS, *arguments), blocks
            before += blocks

    def finds(self, parameters: list[torch.Tensor]) -> bool:
        """Whether all these parameters have gradients of the sizes and kinds it was made for: the quick way to `fits`."""
        return quick_addresses(parameters, self._gpu, self._sizes, self._kinds, self._addresses)

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these tensors are of the sizes and kinds it was made for, and none has gaps."""
        fits = (
            [tensor.numel() for tensor in tensors] == self._sizes.tolist()
            and [tensor.dtype for tensor in tensors] == self._dtypes
            and all([tensor.is_contiguous() or _dense(tensor) for tensor in tensors])  # noqa: C419 - a generator costs twice
        )
        if fits:
            self._addresses[:] = np.array([tensor.data_ptr() for tensor in tensors], np.int64).tobytes()
        return fits

    def read(self) -> None:
        """Start to read the tensors that were found last; the numbers wait in `out`."""
        SENDING.pack_into(self.sending, 0, self.out_at, *[0] * 12, 0, self.count, 0, 0, 0)
        self.launch()
        self.is_read = True

    def launch(self) -> None:
        """Start to read the tensors that were found last, and do with the numbers what `sending` says."""
        if self.is_read:  # for a step that raised
            self.out.zero_()
        self.is_read = False
        for kernel, blocks in self._launches:
            kernel.launch(blocks)


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


_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
SENDING = struct.Struct("@PPP8PPPqiIii")  # `Sending` of kernels.cu: packed into a buffer, which is an argument


class Kernel:
    """One kernel with a fixed list of arguments, whose values can be changed between two launches."""

    def __init__(self, name: str, device: torch.device, threads: int, *arguments: Any) -> None:
        self._index = index_of(device)
        self._function, self._threads, self._arguments = _function(name, self._index), threads, arguments
        self._pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(argument) for argument in arguments])
        self._launch = _driver().cuLaunchKernel
        self._addresses = ctypes.cast(self._launch, ctypes.c_void_p).value, self._function.value
        self._arguments_at = ctypes.addressof(self._pointers)

    def launch(self, blocks: int) -> None:
        """Start it in the current stream of its device; nothing waits for it."""
        index = self._index
        if _current_device() != index:
            with torch.cuda.device(index):
                self.launch(blocks)
            return
        if launch_by_address is not None:
            error = launch_by_address(*self._addresses, blocks, self._threads, _raw_stream(index), self._arguments_at)
        else:
            grid = blocks, 1, 1, self._threads, 1, 1
            error = self._launch(self._function, *grid, 0, _raw_stream(index), self._pointers, None)
        if error:
            raise RuntimeError(f"a kernel could not be started: CUDA error {error}")


def pointer(tensor: torch.Tensor | None = None) -> ctypes.c_void_p:
    """An argument: where a tensor on the device lies; None for one that is set before each launch."""
    return ctypes.c_void_p(0 if tensor is None else tensor.data_ptr())


def pointer_of_pinned(memory: torch.Tensor, device: torch.device) -> int:
    """The address by which a kernel finds pinned memory of the host."""
    address = ctypes.c_void_p()
    with torch.cuda.device(device):
        error = _driver().cuMemHostGetDevicePointer_v2(ctypes.byref(address), ctypes.c_void_p(memory.data_ptr()), 0)
    if error or address.value is None:
        raise RuntimeError(f"a kernel cannot write to this pinned memory: CUDA error {error}")
    return address.value


def can_compile() -> bool:
    """Whether torch can compile the kernels for this GPU."""
    return hasattr(torch.cuda, "_compile_kernel") and torch.version.hip is None


def index_of(device: torch.device) -> int:
    """The number of a GPU; that of the current one, if the device does not say."""
    return device.index if device.index is not None else torch.cuda.current_device()


_library: ctypes.CDLL | None = None
_modules: dict[int, Any] = {}
_functions: dict[tuple[str, int], Any] = {}


def _driver() -> ctypes.CDLL:
    """The driver's library: an own handle, so that the types of the arguments are declared once for these calls only."""
    global _library
    if _library is None:
        from torch.cuda._utils import _get_gpu_runtime_library

        _library = ctypes.CDLL(_get_gpu_runtime_library()._name)
        word, address = ctypes.c_uint, ctypes.c_void_p
        _library.cuLaunchKernel.argtypes = [address, *[word] * 6, word, address, address, address]
    return _library


def _function(name: str, index: int) -> Any:
    """A kernel of kernels.cu; all of them are compiled at once."""
    found = _functions.get((name, index))
    if found is None:
        if index not in _modules:
            with torch.cuda.device(index):
                source = Path(__file__).with_name("kernels.cu").read_text(encoding="utf-8")
                _modules[index] = torch.cuda._compile_kernel(source.replace("AT_ONCE", str(_AT_ONCE)), "read_gradients")
        found = ctypes.c_void_p()
        with torch.cuda.device(index):
            error = _driver().cuModuleGetFunction(ctypes.byref(found), _modules[index].module, name.encode())
        if error:
            raise RuntimeError(f"the kernel {name} is not there: CUDA error {error}")
        _functions[name, index] = found
    return found
