"""All gradients on a GPU, read once in one kernel: sum of squares, largest value and non-finite count of each tensor.

Where torch cannot compile the kernel (older than 2.9), the multi-tensor norm does the same work in more launches and without the
counts. The addresses of the gradients change from step to step; they are part of the kernel's arguments.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from holdfast.inside.gradients.host import is_plain, quick_addresses

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
        self.is_read = False  # whether numbers are in it, or will be
        self.sending = ctypes.create_string_buffer(SENDING.size)
        self._only_reading = ctypes.create_string_buffer(SENDING.size)
        for sending in (self.sending, self._only_reading):
            SENDING.pack_into(sending, 0, self.out.data_ptr(), *[0] * 12, 0, self.count, 0, 0, 0)
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
        SENDING.pack_into(self.sending, 0, self.out.data_ptr(), *[0] * 12, 0, self.count, 0, 0, 0)
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


SOURCE = r"""
__device__ __forceinline__ float from_bf16(unsigned short x) { return __uint_as_float(((unsigned int)x) << 16); }
__device__ __forceinline__ float from_fp16(unsigned short x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }

struct Totals { float squares; float largest; float bad; };
__device__ __forceinline__ void take(Totals &t, float x) {
  t.squares = fmaf(x, x, t.squares);
  float size = fabsf(x);
  if (size <= 3.402823466e+38f) t.largest = fmaxf(t.largest, size); else t.bad += 1.0f;
}

// One block gives a step's numbers to the host. out: sums of squares, maxima and non-finite counts of the tensors, set to 0 for
// the next step. scalars: addresses of single numbers; kinds: four bits for each (0: there is none). The loss is the first, the
// norm the second; the sixth is found_inf, which is the flag unless the script has one. trouble: the number of the last row with
// something that is not finite. The number of the row is written last.
struct Sending {
  float *out; double *header; float *each; const void *scalars[8]; float *flag; double *trouble;
  long long number; int tensors; unsigned kinds; int with_loss; int send;
};

__device__ double scalar(const void *p, unsigned kind) {
  if (kind == 1u) return *(const float *)p;
  if (kind == 2u) return from_bf16(*(const unsigned short *)p);
  if (kind == 3u) return from_fp16(*(const unsigned short *)p);
  return *(const double *)p;
}

__device__ void send(const Sending &s) {
  double squares = 0.0, bad = 0.0;
  for (int i = threadIdx.x; i < 3 * s.tensors; i += blockDim.x) {
    float value = __ldcg(s.out + i);
    if (i < s.tensors) squares += value;
    if (i >= 2 * s.tensors && value > 0.0f) bad += 1.0;
    s.each[i] = value;
    s.out[i] = 0.0f;
  }
  for (int o = 16; o > 0; o >>= 1) {
    squares += __shfl_down_sync(0xffffffffu, squares, o);
    bad += __shfl_down_sync(0xffffffffu, bad, o);
  }
  __shared__ double sums[64];
  if ((threadIdx.x & 31) == 0) { sums[threadIdx.x >> 5] = squares; sums[32 + (threadIdx.x >> 5)] = bad; }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < (int)(blockDim.x >> 5); ++w) { squares += sums[w]; bad += sums[32 + w]; }
  s.header[1] = squares;
  s.header[2] = bad;
  bool wrong = bad > 0.0, trouble = wrong;
  for (int i = 0; i < 8; ++i) {
    unsigned kind = (s.kinds >> (4 * i)) & 15u;
    if (kind == 0u) continue;
    double value = scalar(s.scalars[i], kind);
    s.header[3 + i] = value;
    if (i > 1 || fabs(value) <= 1.7976931348623157e308) continue;
    trouble = true;
    if (i == 0 ? s.with_loss : s.tensors == 0) wrong = true;
  }
  if (((s.kinds >> 20) & 15u) == 0u) s.header[8] = wrong ? 1.0 : 0.0;
  *s.flag = wrong ? 1.0f : 0.0f;
  if (trouble) *(volatile double *)s.trouble = (double)s.number;
  __threadfence_system();
  *(volatile double *)s.header = (double)s.number;
}

// One block reads one chunk of one tensor. where: [tensor, chunk] pairs; kinds: 0 float, 1 bf16, 2 fp16. The block that ends last
// sends the row, if that is wanted.
struct Addresses { unsigned long long of[AT_ONCE]; };
extern "C" __global__ void read_gradients(const Addresses addresses, const long long *sizes, const int *kinds, const int *where,
                                          unsigned *ended, int chunk, Sending s) {
  float *out = s.out;
  int tensors = s.tensors;
  int tensor = where[2 * blockIdx.x];
  long long begin = (long long)where[2 * blockIdx.x + 1] * chunk;
  long long left = sizes[tensor] - begin;
  int count = (int)(left < chunk ? left : chunk);
  unsigned long long address = addresses.of[tensor % AT_ONCE];
  Totals t = {0.0f, 0.0f, 0.0f};
  int kind = kinds[tensor];
  if (kind == 0) {
    const float *p = (const float *)address + begin;
    int done = 0;
    if ((((unsigned long long)p) & 15ULL) == 0ULL) {
      int fours = count >> 2;
      const float4 *q = (const float4 *)p;
      #pragma unroll 4
      for (int i = threadIdx.x; i < fours; i += blockDim.x) {
        float4 v = __ldcs(q + i);
        take(t, v.x); take(t, v.y); take(t, v.z); take(t, v.w);
      }
      done = fours << 2;
    }
    for (int i = done + threadIdx.x; i < count; i += blockDim.x) take(t, p[i]);
  } else {
    const unsigned short *p = (const unsigned short *)address + begin;
    int done = 0;
    if ((((unsigned long long)p) & 7ULL) == 0ULL) {
      int fours = count >> 2;
      const ushort4 *q = (const ushort4 *)p;
      #pragma unroll 4
      for (int i = threadIdx.x; i < fours; i += blockDim.x) {
        ushort4 v = __ldcs(q + i);
        if (kind == 1) { take(t, from_bf16(v.x)); take(t, from_bf16(v.y)); take(t, from_bf16(v.z)); take(t, from_bf16(v.w)); }
        else { take(t, from_fp16(v.x)); take(t, from_fp16(v.y)); take(t, from_fp16(v.z)); take(t, from_fp16(v.w)); }
      }
      done = fours << 2;
    }
    for (int i = done + threadIdx.x; i < count; i += blockDim.x) take(t, kind == 1 ? from_bf16(p[i]) : from_fp16(p[i]));
  }
  for (int o = 16; o > 0; o >>= 1) {
    t.squares += __shfl_down_sync(0xffffffffu, t.squares, o);
    t.largest = fmaxf(t.largest, __shfl_down_sync(0xffffffffu, t.largest, o));
    t.bad += __shfl_down_sync(0xffffffffu, t.bad, o);
  }
  __shared__ Totals warps[32];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (lane == 0) warps[warp] = t;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < (int)(blockDim.x >> 5); ++w) {
      t.squares += warps[w].squares; t.largest = fmaxf(t.largest, warps[w].largest); t.bad += warps[w].bad;
    }
    atomicAdd(out + tensor, t.squares);
    atomicMax((int *)(out + tensors + tensor), __float_as_int(t.largest));
    if (t.bad > 0.0f) atomicAdd(out + 2 * tensors + tensor, t.bad);
  }
  if (!s.send) return;
  __shared__ bool last;
  __threadfence();
  if (threadIdx.x == 0) last = atomicInc(ended, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (last) send(s);
}

extern "C" __global__ void send_row(Sending s) { send(s); }

// One block for each buffer, in words of four bytes: keep what it holds, or put back what was kept if the flag is set.
extern "C" __global__ void keep_unless(const unsigned long long *addresses, const int *words, const int *offsets, unsigned *kept,
                                       const float *flag) {
  unsigned *buffer = (unsigned *)addresses[blockIdx.x], *mine = kept + offsets[blockIdx.x];
  bool put_back = flag != nullptr && *flag != 0.0f;
  for (int i = threadIdx.x; i < words[blockIdx.x]; i += blockDim.x) {
    if (put_back) buffer[i] = mine[i]; else mine[i] = buffer[i];
  }
}
"""

_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
SENDING = struct.Struct("@PPP8PPPqiIii")  # the struct of that name: packed into a buffer, which is an argument


class Kernel:
    """One kernel with a fixed list of arguments, whose values can be changed between two launches."""

    def __init__(self, name: str, device: torch.device, threads: int, *arguments: Any) -> None:
        self._index = index_of(device)
        self._function, self._threads, self._arguments = _function(name, self._index), threads, arguments
        self._pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(argument) for argument in arguments])
        self._launch = _driver().cuLaunchKernel

    def launch(self, blocks: int) -> None:
        """Start it in the current stream of its device; nothing waits for it."""
        if _current_device() != self._index:
            with torch.cuda.device(self._index):
                self.launch(blocks)
            return
        error = self._launch(self._function, blocks, 1, 1, self._threads, 1, 1, 0, _raw_stream(self._index), self._pointers, None)
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
    """A kernel of the source above; all of them are compiled at once."""
    found = _functions.get((name, index))
    if found is None:
        if index not in _modules:
            with torch.cuda.device(index):
                _modules[index] = torch.cuda._compile_kernel(SOURCE.replace("AT_ONCE", str(_AT_ONCE)), "read_gradients")
        found = ctypes.c_void_p()
        with torch.cuda.device(index):
            error = _driver().cuModuleGetFunction(ctypes.byref(found), _modules[index].module, name.encode())
        if error:
            raise RuntimeError(f"the kernel {name} is not there: CUDA error {error}")
        _functions[name, index] = found
    return found
