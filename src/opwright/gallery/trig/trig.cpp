// Sine and cosine on the CPU: one template, two entries.
#include <cmath>

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/Dispatch_v2.h>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kGrain = 1 << 12;  // elements that are worth a thread

template <class Function>
Tensor map(const Tensor& x, Function function) {
  const Tensor in = torch::stable::contiguous(x);
  Tensor out = torch::stable::new_empty(in, in.sizes());
  THO_DISPATCH_V2(in.scalar_type(), "gallery::sin, cos", AT_WRAP([&] {
    using Wide = std::conditional_t<sizeof(scalar_t) < 4, float, scalar_t>;  // half types are computed in float
    const scalar_t* from = in.const_data_ptr<scalar_t>();
    scalar_t* to = out.mutable_data_ptr<scalar_t>();
    torch::stable::parallel_for(0, in.numel(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = function(static_cast<Wide>(from[i]));
    });
  }), AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half, ScalarType::BFloat16);
  return out;
}

Tensor sine(const Tensor& x) {
  return map(x, [](auto v) { return std::sin(v); });
}

Tensor cosine(const Tensor& x) {
  return map(x, [](auto v) { return std::cos(v); });
}
