// Elementwise addition on the CPU. Only headers of torch's stable ABI: builds in seconds, runs on every later torch.
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/Dispatch_v2.h>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kGrain = 1 << 15;  // elements that are worth a thread

Tensor add(const Tensor& x, const Tensor& y) {
  const Tensor a = torch::stable::contiguous(x), b = torch::stable::contiguous(y);
  Tensor out = torch::stable::new_empty(a, a.sizes());
  THO_DISPATCH_V2(a.scalar_type(), "gallery::add", AT_WRAP([&] {
    const scalar_t* pa = a.const_data_ptr<scalar_t>();
    const scalar_t* pb = b.const_data_ptr<scalar_t>();
    scalar_t* po = out.mutable_data_ptr<scalar_t>();
    torch::stable::parallel_for(0, a.numel(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) po[i] = pa[i] + pb[i];
    });
  }), AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half, ScalarType::BFloat16);
  return out;
}
