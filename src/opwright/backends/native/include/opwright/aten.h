// For host functions on at::Tensor: the headers of ATen that extensions use, and the conversions of their arguments and
// results. It is precompiled, as it takes ten seconds and more to read.
#ifndef OPWRIGHT_ATEN_H  // guarded by name: there is a copy beside the precompiled form
#define OPWRIGHT_ATEN_H
#include <ATen/ATen.h>
// What <torch/all.h> has besides torch::nn and the like: names such as at::parallel_for and torch::kMean come from here.
#include <torch/cuda.h>
#include <torch/enum.h>
#include <torch/fft.h>
#include <torch/library.h>
#include <torch/mps.h>
#include <torch/nested.h>
#include <torch/sparse.h>
#include <torch/special.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>
#include <torch/xpu.h>
#if __has_include(<torch/print.h>)  // torch 2.11 has none
#include <torch/print.h>
#endif

#include <array>
#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace opwright {

// An integer argument, for functions that take any type of integer.
struct Integer {
  int64_t value;

  template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
  operator T() const {
    TORCH_CHECK_VALUE(
        std::in_range<T>(value), "the kernel's function takes an integer of ", 8 * sizeof(T), " bits, but got ", value);
    return static_cast<T>(value);
  }
  template <class T, std::enable_if_t<std::is_floating_point_v<T> || std::is_same_v<T, bool>, int> = 0>
  operator T() const {
    return static_cast<T>(value);
  }
  operator at::Scalar() const { return at::Scalar(value); }
  operator c10::SymInt() const { return c10::SymInt(value); }
};

template <class Result>
struct Converted {  // a tensor
  static Result from(Result value) { return value; }
  static Result from(const std::vector<at::Tensor>& values) {
    TORCH_CHECK(values.size() == 1, "the kernel returned ", values.size(), " tensors, but the operator has one output");
    return values[0];
  }
  static Result from(const std::tuple<at::Tensor>& values) { return std::get<0>(values); }
};

template <class... T>
struct Converted<std::tuple<T...>> {
  using Result = std::tuple<T...>;

  template <class Values>
  static Result from(const Values& values) {
    if constexpr (std::is_constructible_v<Result, const Values&>) {
      return Result(values);
    } else {
      TORCH_CHECK(
          std::size(values) == sizeof...(T), "the kernel returned ", std::size(values),
          " tensors, but the operator has ", sizeof...(T), " outputs");
      return elements(values, std::index_sequence_for<T...>());
    }
  }
  template <class Values, std::size_t... i>
  static Result elements(const Values& values, std::index_sequence<i...>) {
    return Result(values[i]...);
  }
};

// What a function returns, as the operator's result.
template <class Result, class Function>
Result returned(Function&& function) {
  if constexpr (std::is_void_v<Result>) {
    function();
  } else {
    return Converted<Result>::from(function());
  }
}

}  // namespace opwright

#endif
