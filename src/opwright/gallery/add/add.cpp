// Elementwise addition on the CPU. It needs only the headers of torch's stable ABI, so it builds in seconds, and
// what was built runs on every later torch.
#include <opwright/tensor.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/Dispatch_v2.h>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kGrain = 1 << 15;  // elements that are worth a thread

template <class T>
void add_into(Tensor& out, const Tensor& x, const Tensor& y) {
  const T* a = x.const_data_ptr<T>();
  const T* b = y.const_data_ptr<T>();
  T* c = out.mutable_data_ptr<T>();
  torch::stable::parallel_for(0, out.numel(), kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) c[i] = a[i] + b[i];
  });
}

Tensor add(const Tensor& x, const Tensor& y) {
  const Tensor a = opwright::contiguous(x), b = opwright::contiguous(y);
  Tensor out = opwright::empty_like(a);
  THO_DISPATCH_V2(a.scalar_type(), "gallery::add", [&] { add_into<scalar_t>(out, a, b); },
                  AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half, ScalarType::BFloat16);
  return out;
}
