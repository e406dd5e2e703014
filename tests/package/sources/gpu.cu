#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

__global__ void scale_kernel(const float* x, float* out, float factor, int64_t n) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = x[i] * factor;
}

Tensor scale(const Tensor& x, double factor) {
  const Tensor in = torch::stable::contiguous(x);
  Tensor out = torch::stable::empty_like(in);
  const int64_t n = in.numel();
  if (n == 0) return out;
  void* stream = nullptr;
  aoti_torch_get_current_cuda_stream(in.get_device_index(), &stream);
  scale_kernel<<<(n + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(
      in.const_data_ptr<float>(), out.mutable_data_ptr<float>(), static_cast<float>(factor), n);
  return out;
}
