// torch's matrix products for host functions, without its dispatcher: the functions that AOTInductor's models call, so
// torch does not remove them (torchgen/aoti/fallback_ops.py).
#pragma once
#include <opwright/tensor.h>
#include <torch/csrc/stable/tensor.h>

#ifdef __CUDACC__
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h>
#define OF_THE_DEVICE(function) aoti_torch_cuda_##function
#else
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#define OF_THE_DEVICE(function) aoti_torch_cpu_##function
#endif

// A view.
inline torch::stable::Tensor transposed(const torch::stable::Tensor& matrix) {
  const int64_t sizes[] = {matrix.size(1), matrix.size(0)}, strides[] = {matrix.stride(1), matrix.stride(0)};
  AtenTensorHandle view = nullptr;
  constexpr int64_t kFurther = 0;  // from where the matrix begins
  opwright::require(aoti_torch__reinterpret_tensor(matrix.get(), 2, sizes, strides, kFurther, &view), "no view was made");
  return torch::stable::Tensor(view);
}

// a · b
inline torch::stable::Tensor mm(const torch::stable::Tensor& a, const torch::stable::Tensor& b) {
  torch::stable::Tensor out = opwright::new_empty(a, {a.size(0), b.size(1)});
  opwright::require(OF_THE_DEVICE(mm_out)(out.get(), a.get(), b.get()), "aten::mm failed");
  return out;
}

// bias + a · b, the bias added to each row
inline torch::stable::Tensor addmm(const torch::stable::Tensor& bias, const torch::stable::Tensor& a,
                                   const torch::stable::Tensor& b) {
  torch::stable::Tensor out = opwright::new_empty(a, {a.size(0), b.size(1)});
  opwright::require(OF_THE_DEVICE(addmm_out)(out.get(), bias.get(), a.get(), b.get(), 1, 1), "aten::addmm failed");
  return out;
}

#undef OF_THE_DEVICE
