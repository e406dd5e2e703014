// x + y of float32 on the CPU, for what an eager call costs around it.
#include <opwright/tensor.h>

using torch::stable::Tensor;

Tensor add_host(const Tensor& x, const Tensor& y) {
  Tensor out = opwright::empty_like(x);
  const float* a = x.const_data_ptr<float>();
  const float* b = y.const_data_ptr<float>();
  float* c = out.mutable_data_ptr<float>();
  for (int64_t i = 0, n = x.numel(); i < n; ++i) c[i] = a[i] + b[i];
  return out;
}
