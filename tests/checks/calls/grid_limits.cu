#include <torch/csrc/stable/tensor.h>
#include <torch/csrc/stable/ops.h>

using torch::stable::Tensor;

__global__ void twice_rows(const float* x, float* out, long columns) {
  long row = blockIdx.y;
  for (long i = threadIdx.x; i < columns; i += blockDim.x) out[row * columns + i] = 2 * x[row * columns + i];
}

Tensor grid_limits(const Tensor& x) {
  Tensor out = torch::stable::empty_like(x);
  const int64_t rows = x.size(0), columns = x.size(1);
  dim3 grid(1, rows), block(256);
  twice_rows<<<grid, block>>>((const float*)x.data_ptr(), (float*)out.data_ptr(), columns);
  return out;
}
