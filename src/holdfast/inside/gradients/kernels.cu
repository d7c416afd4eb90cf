// The kernels of cuda.py and device_reader.py, compiled by torch at run time; AT_ONCE is put in before.

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
