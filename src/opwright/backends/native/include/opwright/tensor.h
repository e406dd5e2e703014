// Tensors for host functions on torch's stable ABI: torch::stable::contiguous, new_empty and empty_like without
// torch's dispatcher. Results are contiguous.
#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <stdexcept>

namespace opwright {
namespace {  // nothing here is shared with another shared object, which may contain another version

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Throws if a call of torch's C interface failed; torch has printed the reason.
[[maybe_unused]] void require(AOTITorchError error, const char* what) {
  if (error != AOTI_TORCH_SUCCESS) throw std::runtime_error(what);
}

// The tensor itself if it is contiguous, else a contiguous copy.
[[maybe_unused]] Tensor contiguous(const Tensor& x) {
  return x.is_contiguous() ? x : torch::stable::contiguous(x);
}

[[maybe_unused]] std::optional<Tensor> contiguous(const std::optional<Tensor>& x) {
  return x ? std::optional(opwright::contiguous(*x)) : std::nullopt;
}

// An uninitialised tensor of these sizes, with the device of `like` and, unless another is passed, its dtype.
[[maybe_unused]] Tensor new_empty(const Tensor& like, const int64_t* sizes, int64_t dims,
                                  std::optional<ScalarType> dtype = std::nullopt) {
  constexpr int64_t kMostDims = 64;  // NumPy's limit too
  if (dims > kMostDims) throw std::invalid_argument("a tensor of more than 64 dims");
  std::array<int64_t, kMostDims> strides;
  int64_t stride = 1;
  for (int64_t d = dims - 1; d >= 0; --d) {
    strides[d] = stride;
    stride *= sizes[d] > 1 ? sizes[d] : 1;
  }
  int32_t device_type = 0, device_index = 0;
  AtenTensorHandle made = nullptr;
  require(aoti_torch_get_device_type(like.get(), &device_type), "a tensor's device is not known");
  require(aoti_torch_get_device_index(like.get(), &device_index), "a tensor's device is not known");
  require(aoti_torch_empty_strided(dims, sizes, strides.data(), static_cast<int32_t>(dtype.value_or(like.scalar_type())),
                                   device_type, device_index, &made),
          "torch could not allocate a tensor");
  return Tensor(made);
}

[[maybe_unused]] Tensor new_empty(const Tensor& like, std::initializer_list<int64_t> sizes,
                                  std::optional<ScalarType> dtype = std::nullopt) {
  return new_empty(like, sizes.begin(), static_cast<int64_t>(sizes.size()), dtype);
}

[[maybe_unused]] Tensor empty_like(const Tensor& like) { return new_empty(like, like.sizes().data(), like.dim()); }

#ifdef __CUDACC__
// torch's current stream of a tensor's GPU.
[[maybe_unused]] cudaStream_t current_stream(const Tensor& x) {
  void* stream = nullptr;
  require(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream), "torch has no stream for the device");
  return static_cast<cudaStream_t>(stream);
}
#endif

}  // namespace
}  // namespace opwright
