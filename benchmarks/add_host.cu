// x + y of float32, with its host function: what an eager call costs that has no Python between operator and kernel.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <stdexcept>
#include <string>

using torch::stable::Tensor;

__global__ void add_kernel(const float* x, const float* y, float* out, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = x[i] + y[i];
}

// One call of torch's, where torch::stable::empty_like makes five.
static Tensor empty_contiguous(const Tensor& like) {
  AtenTensorHandle made = nullptr;
  const int64_t n = like.numel(), step = 1;
  if (aoti_torch_empty_strided(1, &n, &step, aoti_torch_dtype_float32(), aoti_torch_device_type_cuda(),
                               like.get_device_index(), &made) != AOTI_TORCH_SUCCESS) {
    throw std::runtime_error("out of memory");
  }
  return Tensor(made);
}

Tensor add_host(const Tensor& x, const Tensor& y) {
  const Tensor out = empty_contiguous(x);
  const int64_t n = x.numel();
  if (n == 0) return out;
  void* stream = nullptr;
  if (aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream) != AOTI_TORCH_SUCCESS) {
    throw std::runtime_error("no current stream");
  }
  add_kernel<<<(n + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const float*>(x.data_ptr()), static_cast<const float*>(y.data_ptr()),
      static_cast<float*>(out.data_ptr()), n);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    throw std::runtime_error(std::string("add_host: ") + cudaGetErrorString(error));
  }
  return out;
}
