#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <vector>

using torch::stable::Tensor;

// A contiguous copy of x, each element replaced.
template <class F>
static Tensor mapped(const Tensor& x, F f) {
  Tensor made = torch::stable::clone(torch::stable::contiguous(x));
  float* values = made.mutable_data_ptr<float>();
  for (int64_t i = 0; i < made.numel(); ++i) values[i] = f(i, values[i]);
  return made;
}

static void write_sum(const Tensor& a, const Tensor& b, Tensor into) {
  const Tensor other = torch::stable::contiguous(b);
  const float* added = other.const_data_ptr<float>();
  torch::stable::copy_(into, mapped(a, [&](int64_t i, float v) { return v + added[i]; }));
}

void add_out(const Tensor& a, const Tensor& b, const Tensor& out) { write_sum(a, b, out); }

void add_all(const std::vector<Tensor>& xs, const std::vector<Tensor>& others) {
  STD_TORCH_CHECK(xs.size() == others.size(), "lists of different lengths");
  for (size_t i = 0; i < xs.size(); ++i) write_sum(xs[i], others[i], xs[i]);
}

Tensor shift(const Tensor& x, double by) {
  Tensor into = x, before = torch::stable::clone(x);
  torch::stable::copy_(into, mapped(x, [&](int64_t, float v) { return v + float(by); }));
  return before;
}
