// The LLTM cell on the CPU: torch's matrix products, and the pointwise part in loops that become vector instructions.
// Half types are computed in float and rounded once.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <tuple>
#include <type_traits>

#include <opwright/tensor.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/Dispatch_v2.h>

#include "products.h"

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

#if defined(__GLIBC__) && defined(__x86_64__) && !defined(__clang__)
#if __GLIBC_PREREQ(2, 35)
// glibc has these for whole vectors too (libmvec); g++ uses them in a loop only if they are declared, as functions
// that access no memory.
extern "C" {
__attribute__((const, simd("notinbranch"))) float expf(float) noexcept;
__attribute__((const, simd("notinbranch"))) float expm1f(float) noexcept;
__attribute__((const, simd("notinbranch"))) float tanhf(float) noexcept;
__attribute__((const, simd("notinbranch"))) double exp(double) noexcept;
__attribute__((const, simd("notinbranch"))) double expm1(double) noexcept;
__attribute__((const, simd("notinbranch"))) double tanh(double) noexcept;
}
#endif
#endif

static inline float exp_of(float v) { return ::expf(v); }
static inline double exp_of(double v) { return ::exp(v); }
static inline float expm1_of(float v) { return ::expm1f(v); }
static inline double expm1_of(double v) { return ::expm1(v); }
static inline float tanh_of(float v) { return ::tanhf(v); }
static inline double tanh_of(double v) { return ::tanh(v); }

constexpr int64_t kTile = 64;        // columns that are converted, computed and converted back at a time
constexpr int64_t kGrain = 1 << 11;  // elements that are worth a thread

template <class T>
using WideOf = std::conditional_t<sizeof(T) < sizeof(float), float, T>;

int64_t tiles_of(int64_t columns) { return (columns + kTile - 1) / kTile; }

template <class S, class T>
void widen(S* tile, const T* row, int64_t count) {
  for (int64_t j = 0; j < count; ++j) tile[j] = static_cast<S>(row[j]);
}

template <class S, class T>
void narrow(T* row, const S* tile, int64_t count) {
  for (int64_t j = 0; j < count; ++j) row[j] = static_cast<T>(tile[j]);
}

// The three gates of some columns of one row, after their activations.
template <class S>
struct Gates {
  S in[kTile], out[kTile], candidate[kTile];
  S slope[kTile];  // of the ELU, at the candidate before it

  template <class T>
  Gates(const T* row, int64_t columns, int64_t count) {
    widen(in, row, count);
    widen(out, row + columns, count);
    widen(candidate, row + 2 * columns, count);
    for (int64_t j = 0; j < count; ++j) in[j] = S(1) / (S(1) + exp_of(-in[j]));
    for (int64_t j = 0; j < count; ++j) out[j] = S(1) / (S(1) + exp_of(-out[j]));
    for (int64_t j = 0; j < count; ++j) {
      const S below = expm1_of(candidate[j]);
      slope[j] = candidate[j] > S(0) ? S(1) : below + S(1);
      candidate[j] = candidate[j] > S(0) ? candidate[j] : below;
    }
  }
};

// -- forward --------------------------------------------------------------------------------------------------

template <class T>
void step(T* h_new, T* c_new, const T* gates, const T* c, int64_t columns, int64_t count) {
  using S = WideOf<T>;
  const Gates<S> gate(gates, columns, count);
  S cell[kTile], squashed[kTile];
  widen(cell, c, count);
  for (int64_t j = 0; j < count; ++j) cell[j] += gate.candidate[j] * gate.in[j];
  for (int64_t j = 0; j < count; ++j) squashed[j] = tanh_of(cell[j]) * gate.out[j];
  narrow(c_new, cell, count);
  narrow(h_new, squashed, count);
}

template <class T>
void forward_into(Tensor& h_new, Tensor& c_new, const Tensor& gates, const Tensor& c) {
  const int64_t rows = c.size(0), columns = c.size(1), tiles = tiles_of(columns);
  T* to_h = h_new.mutable_data_ptr<T>();
  T* to_c = c_new.mutable_data_ptr<T>();
  const T* gate = gates.const_data_ptr<T>();
  const T* cell = c.const_data_ptr<T>();
  torch::stable::parallel_for(0, rows * tiles, kGrain / kTile, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / tiles, column = i % tiles * kTile, at = row * columns + column;
      step(to_h + at, to_c + at, gate + row * 3 * columns + column, cell + at, columns,
           std::min(kTile, columns - column));
    }
  });
}

// [h, x] side by side.
Tensor side_by_side(const Tensor& h, const Tensor& x) {
  const int64_t rows = h.size(0), bytes = h.element_size();
  const int64_t left = h.size(1) * bytes, right = x.size(1) * bytes;
  Tensor out = opwright::new_empty(h, {rows, h.size(1) + x.size(1)});
  auto* to = static_cast<char*>(out.mutable_data_ptr());
  const auto* from_h = static_cast<const char*>(h.const_data_ptr());
  const auto* from_x = static_cast<const char*>(x.const_data_ptr());
  for (int64_t row = 0; row < rows; ++row, to += left + right) {
    if (left > 0) std::memcpy(to, from_h + row * left, left);
    if (right > 0) std::memcpy(to + left, from_x + row * right, right);
  }
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> lltm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                const Tensor& h, const Tensor& c) {
  const Tensor cell = opwright::contiguous(c);
  const Tensor inputs = side_by_side(opwright::contiguous(h), opwright::contiguous(x));
  const Tensor gates = addmm(bias, inputs, transposed(weight));
  Tensor h_new = opwright::empty_like(cell), c_new = opwright::empty_like(cell);
  THO_DISPATCH_V2(cell.scalar_type(), "gallery::lltm", [&] { forward_into<scalar_t>(h_new, c_new, gates, cell); },
                  AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half, ScalarType::BFloat16);
  return {h_new, c_new, inputs, gates};
}

// -- backward -------------------------------------------------------------------------------------------------

// A gradient that autograd left out is a null pointer, and counts as zeros.
template <class S, class T>
void widen_if_given(S* tile, const T* row, int64_t offset, int64_t count) {
  if (row != nullptr)
    widen(tile, row + offset, count);
  else
    std::fill(tile, tile + count, S(0));
}

template <class S>
struct Sums {
  S in[kTile] = {}, out[kTile] = {}, candidate[kTile] = {};
};

// One row's gradients of some columns, and their share of the bias's.
template <class T, class S = WideOf<T>>
void step_back(T* grad_gates, T* grad_c_old, Sums<S>& sums, const S* grad_h, S* grad_c, const T* gates, const T* c_new,
               int64_t columns, int64_t count) {
  const Gates<S> gate(gates, columns, count);
  S squashed[kTile], in[kTile], out[kTile], candidate[kTile];
  widen(squashed, c_new, count);
  for (int64_t j = 0; j < count; ++j) squashed[j] = tanh_of(squashed[j]);
  for (int64_t j = 0; j < count; ++j) {
    grad_c[j] += grad_h[j] * gate.out[j] * (S(1) - squashed[j] * squashed[j]);
    in[j] = grad_c[j] * gate.candidate[j] * gate.in[j] * (S(1) - gate.in[j]);
    out[j] = grad_h[j] * squashed[j] * gate.out[j] * (S(1) - gate.out[j]);
    candidate[j] = grad_c[j] * gate.in[j] * gate.slope[j];
    sums.in[j] += in[j];
    sums.out[j] += out[j];
    sums.candidate[j] += candidate[j];
  }
  narrow(grad_gates, in, count);
  narrow(grad_gates + columns, out, count);
  narrow(grad_gates + 2 * columns, candidate, count);
  narrow(grad_c_old, grad_c, count);
}

// A task owns some columns and walks down the rows, so it sums their gradient of the bias alone, in one order.
template <class T>
void backward_into(Tensor& grad_gates, Tensor& grad_bias, Tensor& grad_c_old, const std::optional<Tensor>& grad_h,
                   const std::optional<Tensor>& grad_c, const Tensor& gates, const Tensor& c_new) {
  using S = WideOf<T>;
  const int64_t rows = c_new.size(0), columns = c_new.size(1);
  T* to_gates = grad_gates.mutable_data_ptr<T>();
  T* to_bias = grad_bias.mutable_data_ptr<T>();
  T* to_c = grad_c_old.mutable_data_ptr<T>();
  const T* from_h = grad_h ? grad_h->const_data_ptr<T>() : nullptr;
  const T* from_c = grad_c ? grad_c->const_data_ptr<T>() : nullptr;
  const T* gate = gates.const_data_ptr<T>();
  const T* cell = c_new.const_data_ptr<T>();
  const int64_t grain = std::max<int64_t>(1, kGrain / kTile / std::max<int64_t>(rows, 1));
  torch::stable::parallel_for(0, tiles_of(columns), grain, [=](int64_t begin, int64_t end) {
    for (int64_t column = begin * kTile; column < std::min(end * kTile, columns); column += kTile) {
      const int64_t count = std::min(kTile, columns - column);
      Sums<S> sums;
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t at = row * columns + column, at_gates = row * 3 * columns + column;
        S of_h[kTile], of_c[kTile];
        widen_if_given(of_h, from_h, at, count);
        widen_if_given(of_c, from_c, at, count);
        step_back<T>(to_gates + at_gates, to_c + at, sums, of_h, of_c, gate + at_gates, cell + at, columns, count);
      }
      narrow(to_bias + column, sums.in, count);
      narrow(to_bias + columns + column, sums.out, count);
      narrow(to_bias + 2 * columns + column, sums.candidate, count);
    }
  });
}

std::tuple<Tensor, Tensor, Tensor> lltm_backward_pointwise(const std::optional<Tensor>& grad_h,
                                                           const std::optional<Tensor>& grad_c, const Tensor& gates,
                                                           const Tensor& c_new) {
  const Tensor gate = opwright::contiguous(gates), cell = opwright::contiguous(c_new);
  const auto from_h = opwright::contiguous(grad_h), from_c = opwright::contiguous(grad_c);
  Tensor grad_gates = opwright::empty_like(gate);
  Tensor grad_bias = opwright::new_empty(gate, {gate.size(1)});
  Tensor grad_c_old = opwright::empty_like(cell);
  THO_DISPATCH_V2(
      cell.scalar_type(), "gallery::lltm_backward_pointwise", ([&] {
        backward_into<scalar_t>(grad_gates, grad_bias, grad_c_old, from_h, from_c, gate, cell);
      }),
      AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half, ScalarType::BFloat16);
  return {grad_gates, grad_bias, grad_c_old};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> lltm_backward(const std::optional<Tensor>& grad_h,
                                                         const std::optional<Tensor>& grad_c, const Tensor& weight,
                                                         const Tensor& inputs, const Tensor& gates,
                                                         const Tensor& c_new) {
  const auto [grad_gates, grad_bias, grad_c_old] = lltm_backward_pointwise(grad_h, grad_c, gates, c_new);
  return {mm(grad_gates, weight), mm(transposed(grad_gates), inputs), grad_bias, grad_c_old};
}
