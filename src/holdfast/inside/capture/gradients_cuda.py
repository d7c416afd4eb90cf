"""All gradients on a GPU, read once in one kernel: sum of squares, largest value and non-finite count of each tensor.

The kernel is compiled by torch at the first step. Where torch cannot do that (older than 2.9), the multi-tensor norm
does the same work in more launches and without the counts. The addresses of the gradients change from step to step; their table
travels through a ring of pinned buffers, each used again only when the copy out of it has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from holdfast.inside.capture.gradients import is_plain
from holdfast.state.host_memory import pinned_zeros

_CHUNK = 65536
_THREADS = 512
_TABLES = 8
_LOOK_EVERY = 16  # steps
_LETTER = {torch.float32: "f", torch.bfloat16: "b", torch.float16: "h"}

SOURCE = r"""
__device__ __forceinline__ float from_bf16(unsigned short x) { return __uint_as_float(((unsigned int)x) << 16); }
__device__ __forceinline__ float from_fp16(unsigned short x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }

struct Totals { float squares; float largest; float bad; };
__device__ __forceinline__ void take(Totals &t, float x) {
  t.squares = fmaf(x, x, t.squares);
  float size = fabsf(x);
  if (size <= 3.402823466e+38f) t.largest = fmaxf(t.largest, size); else t.bad += 1.0f;
}

// One block reads one chunk of one tensor. where: [tensor, chunk] pairs; kinds: 0 float, 1 bf16, 2 fp16.
extern "C" __global__ void read_gradients(const unsigned long long *addresses, const long long *sizes, const int *kinds,
                                          const int *where, float *out, int tensors, int chunk) {
  int tensor = where[2 * blockIdx.x];
  long long begin = (long long)where[2 * blockIdx.x + 1] * chunk;
  long long left = sizes[tensor] - begin;
  int count = (int)(left < chunk ? left : chunk);
  unsigned long long address = addresses[tensor];
  if (address == 0ULL) return;
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
}
"""


class GradientKernel:
    """Reads one set of tensors, always of the same sizes and kinds, wherever they lie this time."""

    def __init__(self, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        self.device, self.count = device, len(tensors)
        self._numels = [tensor.numel() for tensor in tensors]
        self._dtypes = [tensor.dtype for tensor in tensors]
        self._kernel = _compiled(device)
        pairs = [(n, c) for n, t in enumerate(tensors) for c in range(-(-t.numel() // _CHUNK))]
        self._blocks = len(pairs)
        self._where = torch.tensor(pairs, dtype=torch.int32, device="cpu").reshape(-1).pin_memory().to(device, non_blocking=True)
        self._sizes = (
            torch.tensor([t.numel() for t in tensors], dtype=torch.int64, device="cpu").pin_memory().to(device, non_blocking=True)
        )
        kinds = ["fbh".index(_LETTER[t.dtype]) for t in tensors]
        self._kinds = torch.tensor(kinds, dtype=torch.int32, device="cpu").pin_memory().to(device, non_blocking=True)
        self._tables = [
            (
                pinned_zeros(self.count, torch.int64),
                torch.empty(self.count, dtype=torch.int64, device=device),
                torch.cuda.Event(),  # type: ignore[no-untyped-call]
            )
            for _ in range(_TABLES)
        ]
        self._next, self._calls = 0, 0
        self._addresses = [tensor.data_ptr() for tensor in tensors]
        self._table: torch.Tensor | None = None

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these tensors are of the sizes and kinds it was made for, and none has gaps.

        Tensors at the very addresses of the last step are taken for the same ones; every so often they are looked at anyway.
        """
        addresses = [tensor.data_ptr() for tensor in tensors]
        self._calls += 1
        if addresses == self._addresses and self._calls % _LOOK_EVERY:
            return True
        self._addresses, self._table = addresses, None
        return (
            [tensor.numel() for tensor in tensors] == self._numels
            and [tensor.dtype for tensor in tensors] == self._dtypes
            and all([tensor.is_contiguous() or _dense(tensor) for tensor in tensors])  # noqa: C419 - a generator costs twice
        )

    def launch(self) -> torch.Tensor | None:
        """Start to read the tensors that `fits` saw last.

        Gives sums of squares, maxima and non-finite counts in one vector; None if all tables of addresses are in use.
        """
        table = self._table if self._table is not None else self._send_addresses()
        if table is None:
            return None
        out = torch.zeros(3 * self.count, dtype=torch.float32, device=self.device)
        with torch.cuda.device(self.device):
            self._kernel(
                grid=(self._blocks, 1, 1),
                block=(_THREADS, 1, 1),
                args=[table, self._sizes, self._kinds, self._where, out, self.count, _CHUNK],
                stream=torch.cuda.current_stream(self.device),
            )
        return out

    def _send_addresses(self) -> torch.Tensor | None:
        pinned, table, event = self._tables[self._next]
        if not event.query():  # type: ignore[no-untyped-call]
            return None
        self._next = (self._next + 1) % _TABLES
        pinned.numpy()[:] = self._addresses
        table.copy_(pinned, non_blocking=True)
        event.record(torch.cuda.current_stream(self.device))
        self._table = table
        return table


def can_be_read_by_kernel(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether torch can compile the kernel here and the tensors are plain ones of a known kind, all on one GPU."""
    return (
        hasattr(torch.cuda, "_compile_kernel")
        and torch.version.hip is None
        and bool(tensors)
        and all(is_plain(t) and t.is_cuda and t.dtype in _LETTER and t.numel() and _dense(t) for t in tensors)
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


_kernels: dict[int, Any] = {}


def _compiled(device: torch.device) -> Any:
    index = device.index if device.index is not None else torch.cuda.current_device()
    if index not in _kernels:
        with torch.cuda.device(index):
            _kernels[index] = torch.cuda._compile_kernel(SOURCE, "read_gradients")
    return _kernels[index]
