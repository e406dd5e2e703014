// The kernels that cuda_simulator.py times in the CUDA simulator.
#include <cuda_fp16.h>
#include <mma.h>

// No thread waits for another.
__global__ void scale_and_add(const float* x, const float* y, float* out, float a, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i] + y[i];
}

__inline__ __device__ float warp_sum(float v) {
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffff, v, offset);
  return v;
}

__inline__ __device__ float warp_max(float v) {
  for (int offset = 16; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, offset));
  return v;
}

// By shuffles within warps, then through shared memory.
__inline__ __device__ float block_sum(float v) {
  __shared__ float sums[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  v = warp_sum(v);
  __syncthreads();
  if (lane == 0) sums[warp] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / 32 ? sums[lane] : 0.0f;
  if (warp == 0) v = warp_sum(v);
  if (threadIdx.x == 0) sums[0] = v;
  __syncthreads();
  return sums[0];
}

__global__ void layer_norm(const float* x, const float* weight, const float* bias, float* out, int n, float eps) {
  const float* row = x + size_t(blockIdx.x) * n;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += row[i];
  const float mean = block_sum(sum) / n;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float d = row[i] - mean;
    squares += d * d;
  }
  const float scale = rsqrtf(block_sum(squares) / n + eps);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    out[size_t(blockIdx.x) * n + i] = (row[i] - mean) * scale * weight[i] + bias[i];
  }
}

// One warp for each row.
__global__ void softmax(const float* x, float* out, int rows, int n) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float most = -INFINITY, sum = 0.0f;
  for (int i = lane; i < n; i += 32) most = fmaxf(most, x[row * n + i]);
  most = warp_max(most);
  for (int i = lane; i < n; i += 32) sum += expf(x[row * n + i] - most);
  sum = warp_sum(sum);
  for (int i = lane; i < n; i += 32) out[row * n + i] = expf(x[row * n + i] - most) / sum;
}

#define TILE 16
__global__ void sgemm(const float* a, const float* b, float* c, int n) {
  __shared__ float tile_a[TILE][TILE], tile_b[TILE][TILE];
  const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  float sum = 0.0f;
  for (int start = 0; start < n; start += TILE) {
    tile_a[threadIdx.y][threadIdx.x] = a[row * n + start + threadIdx.x];
    tile_b[threadIdx.y][threadIdx.x] = b[(start + threadIdx.y) * n + column];
    __syncthreads();
    for (int i = 0; i < TILE; i++) sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

__global__ void histogram(const int* values, unsigned* counts, int n) {
  __shared__ unsigned mine[256];
  mine[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&mine[values[i]], 1u);
  __syncthreads();
  atomicAdd(&counts[threadIdx.x], mine[threadIdx.x]);
}

// One warp for each 16 x 16 results.
__global__ void hgemm(const half* a, const half* b, float* c, int n) {
  using namespace nvcuda;
  const int row = blockIdx.y * 16, column = blockIdx.x * 16;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int start = 0; start < n; start += 16) {
    wmma::load_matrix_sync(left, a + row * n + start, n);
    wmma::load_matrix_sync(right, b + start * n + column, n);
    wmma::mma_sync(sum, left, right, sum);
  }
  wmma::store_matrix_sync(c + row * n + column, sum, n, wmma::mem_row_major);
}
