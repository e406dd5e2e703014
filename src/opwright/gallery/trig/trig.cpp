// Sine, cosine and the sine's gradient on the CPU: one template, three entries.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include <opwright/tensor.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/Dispatch_v2.h>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

#if defined(__GLIBC__) && defined(__x86_64__) && !defined(__clang__)
// glibc has these for whole vectors too (libmvec); g++ uses them in a loop only if they are declared.
extern "C" {
__attribute__((simd("notinbranch"))) float sinf(float) noexcept;
__attribute__((simd("notinbranch"))) float cosf(float) noexcept;
__attribute__((simd("notinbranch"))) double sin(double) noexcept;
__attribute__((simd("notinbranch"))) double cos(double) noexcept;
}
#endif

struct Sine {
  static float of(float v) { return ::sinf(v); }
  static double of(double v) { return ::sin(v); }
};

struct Cosine {
  static float of(float v) { return ::cosf(v); }
  static double of(double v) { return ::cos(v); }
};

constexpr int64_t kTile = 512;        // elements that are converted, computed and converted back at a time
constexpr int64_t kGrain = 1 << 12;  // elements that are worth a thread

// `scale` has a factor for each element, or is null.
template <class Function, class T>
void map_into(Tensor& out, const Tensor& x, const Tensor* scale) {
  using Wide = std::conditional_t<sizeof(T) < sizeof(float), float, T>;  // half types are computed in float
  const T* from = x.const_data_ptr<T>();
  const T* factors = scale == nullptr ? nullptr : scale->const_data_ptr<T>();
  T* to = out.mutable_data_ptr<T>();
  torch::stable::parallel_for(0, out.numel(), kGrain, [=](int64_t begin, int64_t end) {
    Wide tile[kTile];
    for (int64_t first = begin; first < end; first += kTile) {
      const int64_t count = std::min(kTile, end - first);
      for (int64_t i = 0; i < count; ++i) tile[i] = from[first + i];
      for (int64_t i = 0; i < count; ++i) tile[i] = Function::of(tile[i]);
      for (int64_t i = 0; factors != nullptr && i < count; ++i) tile[i] *= static_cast<Wide>(factors[first + i]);
      for (int64_t i = 0; i < count; ++i) to[first + i] = tile[i];
    }
  });
}

template <class Function>
Tensor map(const Tensor& x, const Tensor* scale = nullptr) {
  const Tensor in = opwright::contiguous(x);
  Tensor out = opwright::empty_like(in);
  THO_DISPATCH_V2(in.scalar_type(), "gallery::sin, cos", ([&] { map_into<Function, scalar_t>(out, in, scale); }),
                  AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half, ScalarType::BFloat16);
  return out;
}

Tensor sine(const Tensor& x) { return map<Sine>(x); }

Tensor cosine(const Tensor& x) { return map<Cosine>(x); }

Tensor sine_backward(const Tensor& grad, const Tensor& x) {
  const Tensor factors = opwright::contiguous(grad);
  return map<Cosine>(x, &factors);
}
