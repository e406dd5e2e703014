// RMSNorm on the CPU, in loops that become vector instructions. Sums are in float, and results are rounded once more
// before the weight, as in Llama.
#include <algorithm>
#include <cmath>
#include <tuple>

#include <opwright/tensor.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/Dispatch_v2.h>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kLanes = 64;       // elements that are converted at a time, and partial sums of a row
constexpr int64_t kGrain = 1 << 14;  // elements that are worth a thread

template <class T>
float sum_of_squares(const T* x, int64_t n) {
  float sums[kLanes] = {};
  int64_t start = 0;
  for (; start + kLanes <= n; start += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) {
      const float value = static_cast<float>(x[start + j]);
      sums[j] += value * value;
    }
  for (; start < n; ++start) sums[start % kLanes] += static_cast<float>(x[start]) * static_cast<float>(x[start]);
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

template <class T>
void norm_row(T* out, const T* x, const T* weight, int64_t n, float scale) {
  for (int64_t j = 0; j < n; ++j) {
    const T normed = static_cast<T>(static_cast<float>(x[j]) * scale);
    out[j] = static_cast<T>(static_cast<float>(normed) * static_cast<float>(weight[j]));
  }
}

template <class T>
void norm_rows(Tensor& out, Tensor& rstd, const Tensor& x, const Tensor& weight, double eps) {
  const int64_t rows = rstd.numel(), n = weight.numel();
  T* to = out.mutable_data_ptr<T>();
  float* scales = rstd.mutable_data_ptr<float>();
  const T* from = x.const_data_ptr<T>();
  const T* by = weight.const_data_ptr<T>();
  torch::stable::parallel_for(0, rows, std::max<int64_t>(1, kGrain / n), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      scales[row] = 1.f / std::sqrt(sum_of_squares(from + row * n, n) / n + static_cast<float>(eps));
      norm_row(to + row * n, from + row * n, by, n, scales[row]);
    }
  });
}

std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const Tensor from = opwright::contiguous(x), by = opwright::contiguous(weight);
  Tensor out = opwright::empty_like(from);
  Tensor rstd = opwright::new_empty(from, from.sizes().data(), from.dim() - 1, ScalarType::Float);
  THO_DISPATCH_V2(from.scalar_type(), "llm::rms_norm", ([&] { norm_rows<scalar_t>(out, rstd, from, by, eps); }),
                  ScalarType::Float, ScalarType::Half, ScalarType::BFloat16);
  return {out, rstd};
}
