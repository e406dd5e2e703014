// X · Wᵀ + b by torch's own product, for host functions.
#pragma once
#include <opwright/tensor.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <optional>

inline torch::stable::Tensor linear(const torch::stable::Tensor& inputs, const torch::stable::Tensor& weight,
                                    const torch::stable::Tensor& bias) {
  using torch::stable::detail::from;
  std::array<StableIValue, 3> stack{from(inputs), from(weight), from(std::optional(bias))};
  opwright::require(torch_call_dispatcher("aten::linear", "", stack.data(), TORCH_ABI_VERSION), "aten::linear failed");
  return torch::stable::detail::to<torch::stable::Tensor>(stack[0]);
}
