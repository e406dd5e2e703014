// Kernels without a defect: they must give exact results and no finding, in every order of threads and blocks.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace cg = cooperative_groups;

extern __shared__ unsigned char raw_memory[];

__constant__ int table[3] = {1, 10, 100};
__device__ int counter;

__device__ __forceinline__ int warp_sum(int v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_down_sync(0xffffffff, v, offset);
  return v;
}

__global__ void __launch_bounds__(256) block_sum(const int* __restrict__ x, int* __restrict__ out, int n) {
  __shared__ int partial[8];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int sum = warp_sum(i < n ? x[i] : 0);
  if (threadIdx.x % warpSize == 0) partial[threadIdx.x / warpSize] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = warp_sum(threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
  }
}

template <int Tile>
__global__ void transpose(const float* in, float* out, int rows, int columns) {
  __shared__ float tile[Tile][Tile + 1];
  int x = blockIdx.x * Tile + threadIdx.x, y = blockIdx.y * Tile + threadIdx.y;
  if (x < columns && y < rows) tile[threadIdx.y][threadIdx.x] = in[y * columns + x];
  __syncthreads();
  x = blockIdx.y * Tile + threadIdx.x, y = blockIdx.x * Tile + threadIdx.y;
  if (x < rows && y < columns) out[y * rows + x] = tile[threadIdx.x][threadIdx.y];
}

__global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float ta[16][16], tb[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0.0f;
  for (int k = 0; k < n; k += 16) {
    ta[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
    tb[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
    __syncthreads();
    for (int i = 0; i < 16; i++) sum += ta[threadIdx.y][i] * tb[i][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

__global__ void histogram(const int* x, unsigned* bins, int n) {
  __shared__ unsigned local[32];
  if (threadIdx.x < 32) local[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[x[i]], 1u);
  __syncthreads();
  if (threadIdx.x < 32) atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

template <class T>
__global__ void scan(const T* x, T* out) {
  extern __shared__ T s[];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (unsigned offset = 1; offset < blockDim.x; offset *= 2) {
    T add = threadIdx.x >= offset ? s[threadIdx.x - offset] : T(0);
    __syncthreads();
    s[threadIdx.x] += add;
    __syncthreads();
  }
  out[threadIdx.x] = s[threadIdx.x];
}

__global__ void warp_reverse_in_shared(int* x) {
  int* mine = reinterpret_cast<int*>(raw_memory) + threadIdx.x / 32 * 32;
  mine[threadIdx.x % 32] = x[threadIdx.x];
  __syncwarp();
  x[threadIdx.x] = mine[31 - threadIdx.x % 32];
}

__global__ void tile_sums(const int* x, int* out) {
  cg::thread_block block = cg::this_thread_block();
  auto tile = cg::tiled_partition<8>(block);
  int sum = cg::reduce(tile, x[block.thread_rank()], cg::plus<int>());
  int before = cg::exclusive_scan(tile, 1);
  block.sync();
  if (tile.thread_rank() == 0) out[tile.meta_group_rank()] = sum + before;
}

__global__ void last_block_sums(const int* x, int* partial, unsigned* ticket, int* out) {
  __shared__ bool last;
  int sum = warp_sum(x[blockIdx.x * blockDim.x + threadIdx.x]);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    last = atomicInc(ticket, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) {
    sum = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += partial[i];
    sum = warp_sum(sum);
    if (threadIdx.x == 0) out[0] = sum;
  }
}

__global__ void locked(int* lock, int* value) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      __threadfence();
      value[0] = value[0] + 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}

__global__ void some_return(const int* x, int* out, int n) {
  __shared__ int s[64];
  if (int(threadIdx.x) >= n) return;
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = s[n - 1 - threadIdx.x];
}

__global__ void votes(const int* x, int* out) {
  int v = x[threadIdx.x];
  out[threadIdx.x] = __syncthreads_count(v > 0);
  out[64 + threadIdx.x] = __syncthreads_and(v > -5) + 2 * __syncthreads_or(v > 100);
  out[128 + threadIdx.x] = __popc(__ballot_sync(0xffffffffu, v > 0)) + 100 * __all_sync(0xffffffffu, v > -5) +
                           1000 * __any_sync(0xffffffffu, v > 100);
  out[192 + threadIdx.x] = threadIdx.x % 2 ? __popc(__activemask()) : __reduce_max_sync(0x55555555u, v);
  out[256 + threadIdx.x] = __popc(__match_any_sync(0xffffffffu, v % 3));
}

__global__ void copy_float4(const float4* in, float4* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __ldg(&in[i]);
}

template <class T>
__device__ T fused(T a, T b, T c) {
  return __hfma(a, b, c);
}

// out: a + b, a - b, a * b, a / b, fma(a, b, c), from float, as float would compare
template <class T>
__global__ void arithmetic(const T* a, const T* b, const T* c, T* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  out[i] = a[i] + b[i];
  out[n + i] = a[i] - b[i];
  out[2 * n + i] = a[i] * b[i];
  out[3 * n + i] = a[i] / b[i];
  out[4 * n + i] = fused(a[i], b[i], c[i]);
  out[5 * n + i] = a[i] < b[i] ? a[i] : b[i];
}

__global__ void half2_axpy(const half2* x, half2* y, half a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __hadd2(__hmul2(__half2half2(a), x[i]), y[i]);
}

__global__ void half2_atomics(half2* sums) { atomicAdd(&sums[threadIdx.x % 2], __floats2half2_rn(1.0f, 2.0f)); }

__global__ void convert(const float* x, half* h, __nv_bfloat16* b, int* i, int n) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= n) return;
  h[t] = __float2half_rn(x[t]);
  b[t] = __float2bfloat16(x[t]);
  i[t] = __float2int_rn(x[t]);
}

__global__ void axpy(const float* x, const float* y, float a, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i] + y[i];
}

struct Affine {
  double scale;
  int offset;
};

__global__ void takes_a_structure(Affine f, int* out, bool negate) {
  __shared__ Affine kept[2];
  if (threadIdx.x == 0) kept[0] = f;
  __syncthreads();
  Affine mine = kept[0];
  int v = int(mine.scale * threadIdx.x) + mine.offset;
  out[threadIdx.x] = negate ? -v : v;
}

__global__ void says_hello(int n) {
  if (threadIdx.x == 3) printf("thread %d of %d\n", threadIdx.x, n);
  assert(n > 0);
}

__global__ void uses_module_variables(int* out) {
  out[threadIdx.x] = table[threadIdx.x];
  atomicAdd(&counter, table[threadIdx.x]);
}

__global__ void bits(const unsigned* x, unsigned* out) {
  unsigned v = x[threadIdx.x];
  unsigned* mine = out + 8 * threadIdx.x;
  mine[0] = __popc(v), mine[1] = __clz(v), mine[2] = __ffs(v), mine[3] = __brev(v);
  mine[4] = __byte_perm(v, 0x01020304, 0x5140), mine[5] = __funnelshift_l(v, v, 8), mine[6] = __umulhi(v, v);
  mine[7] = __float_as_uint(__uint_as_float(v));
}
