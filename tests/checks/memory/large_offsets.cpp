// The same loop with offsets of 64 and of 32 bits.
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

template <typename Offset>
Tensor flip(const Tensor& x) {
  Tensor out = torch::stable::new_zeros(x, x.sizes());
  const uint8_t* in = static_cast<const uint8_t*>(x.const_data_ptr());
  uint8_t* to = static_cast<uint8_t*>(out.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) {
    const Offset at = static_cast<Offset>(i);
    if (at >= 0) to[at] = ~in[at];
  }
  return out;
}

Tensor flip_wide(const Tensor& x) { return flip<int64_t>(x); }
Tensor flip_narrow(const Tensor& x) { return flip<int32_t>(x); }
