// RMSNorm, forward: a row in the registers of a block, or of a warp. Rows may have gaps between them.
#include "rows.cuh"

template <class T, int WIDTH, int ROUNDS>
__global__ void rms_norm(const T* __restrict__ x, const T* __restrict__ weight, T* __restrict__ out,
                         float* __restrict__ rstd, long long rows, int n, long long stride, float eps) {
  const long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;  // whole warps, and only where no warp waits for another
  using Values = Row<T, WIDTH, ROUNDS>;
  const Values values(x + row * stride, n, 0.f);
  const float scale = rsqrtf(values.sum([](float value) { return value * value; }) / n + eps);
  if (threadIdx.x == 0) rstd[row] = scale;
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const int column = Values::column(r);
    if (column >= n) break;
    Pack<T, WIDTH> result = load<WIDTH>(weight + column);
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) {
      const T normed = static_cast<T>(values.value[r][e] * scale);  // rounded, as in Llama
      result.value[e] = static_cast<T>(static_cast<float>(normed) * static_cast<float>(result.value[e]));
    }
    store(out + row * n + column, result);
  }
}
