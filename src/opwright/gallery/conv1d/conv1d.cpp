// 1-D convolution on the CPU: blocks of outputs that stay in the first cache while the taps pass over them one by one,
// in loops that compilers turn into vector instructions. Half types are summed in float and rounded once.
#include <opwright/tensor.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/Dispatch_v2.h>

#include <algorithm>
#include <type_traits>
#include <vector>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kBlock = 1024;
constexpr int64_t kGrain = 1 << 15;  // products that are worth a thread

// Outputs begin … end, whose taps all meet an input or lie past its end, where the input counts as zeros.
template <class T, class Sum>
void convolve(T* out, const T* x, const Sum* taps, int64_t n, int64_t m, int64_t begin, int64_t end) {
  Sum window[kBlock], total[kBlock];
  for (int64_t start = begin; start < end; start += kBlock) {
    const int64_t count = std::min(kBlock, end - start);
    std::fill(total, total + count, Sum(0));
    for (int64_t j = 0; j < m; ++j) {
      const int64_t inside = std::clamp(n - start - j, int64_t(0), count);
      const T* from = x + start + j;
      if (inside == count) {
        for (int64_t i = 0; i < count; ++i) total[i] += static_cast<Sum>(from[i]) * taps[j];
        continue;
      }
      for (int64_t i = 0; i < inside; ++i) window[i] = static_cast<Sum>(from[i]);
      std::fill(window + inside, window + count, Sum(0));
      for (int64_t i = 0; i < count; ++i) total[i] += window[i] * taps[j];
    }
    for (int64_t i = 0; i < count; ++i) out[start + i] = static_cast<T>(total[i]);
  }
}

template <class T>
void convolve_all(Tensor& out, const Tensor& x, const Tensor& k) {
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const T* values = x.const_data_ptr<T>();
  const T* given = k.const_data_ptr<T>();
  T* result = out.mutable_data_ptr<T>();
  const int64_t n = x.numel(), m = k.numel();
  const std::vector<Sum> taps(given, given + m);
  torch::stable::parallel_for(0, n, std::max<int64_t>(1, kGrain / std::max<int64_t>(m, 1)), [&](int64_t begin, int64_t end) {
    convolve<T, Sum>(result, values, taps.data(), n, m, begin, end);
  });
}

Tensor conv1d(const Tensor& x, const Tensor& k) {
  const Tensor a = opwright::contiguous(x), b = opwright::contiguous(k);
  Tensor out = opwright::empty_like(a);
  THO_DISPATCH_V2(a.scalar_type(), "gallery::conv1d", [&] { convolve_all<scalar_t>(out, a, b); },
                  AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half, ScalarType::BFloat16);
  return out;
}

// Adds to each tap's sum what a range of inputs gives, in blocks that stay in the first cache for all taps.
template <class T, class Sum>
void correlate(Sum* out, const T* x, const T* grad, int64_t n, int64_t m, int64_t begin, int64_t end) {
  for (int64_t start = begin; start < end; start += kBlock) {
    const int64_t count = std::min(kBlock, end - start);
    for (int64_t j = 0; j < m; ++j) {
      const int64_t inside = std::clamp(n - start - j, int64_t(0), count);
      Sum lanes[16] = {};  // sums side by side, which compilers keep in vector registers
      int64_t i = 0;
      for (; i + 16 <= inside; i += 16)
        for (int64_t l = 0; l < 16; ++l)
          lanes[l] += static_cast<Sum>(x[start + i + j + l]) * static_cast<Sum>(grad[start + i + l]);
      for (; i < count; ++i)  // past the end, a zero: of an infinite gradient it makes NaN, as in the reference
        lanes[0] += (i < inside ? static_cast<Sum>(x[start + i + j]) : Sum(0)) * static_cast<Sum>(grad[start + i]);
      for (int64_t l = 0; l < 16; ++l) out[j] += lanes[l];
    }
  }
}

template <class T>
void correlate_all(Tensor& out, const Tensor& x, const Tensor& grad) {
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const T* values = x.const_data_ptr<T>();
  const T* given = grad.const_data_ptr<T>();
  T* result = out.mutable_data_ptr<T>();
  const int64_t n = x.numel(), m = out.numel();
  // Pieces of a size that does not depend on the number of threads, added in order: results repeat.
  const int64_t piece = 1 << 16, pieces = (n + piece - 1) / piece;
  std::vector<Sum> partial(pieces * m, Sum(0));
  torch::stable::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p)
      correlate<T, Sum>(partial.data() + p * m, values, given, n, m, p * piece, std::min(n, (p + 1) * piece));
  });
  for (int64_t j = 0; j < m; ++j) {
    Sum total = 0;
    for (int64_t p = 0; p < pieces; ++p) total += partial[p * m + j];
    result[j] = static_cast<T>(total);
  }
}

Tensor conv1d_taps(const Tensor& x, const Tensor& grad, int64_t m) {
  const Tensor a = opwright::contiguous(x), b = opwright::contiguous(grad);
  Tensor out = opwright::new_empty(a, {m});
  THO_DISPATCH_V2(a.scalar_type(), "gallery::conv1d_taps", [&] { correlate_all<scalar_t>(out, a, b); },
                  AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half, ScalarType::BFloat16);
  return out;
}
