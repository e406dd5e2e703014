// For the text that Python appends to a kernel's source: the call of the kernel, and its parameters.
#pragma once

#include <type_traits>
#include <utility>

#include "../../runtime/abi.h"
#include "float16.h"

#ifdef __clang__
#define KERNELSIM_PLAIN __attribute__((no_sanitize("thread"), no_sanitize("undefined")))
#else
#define KERNELSIM_PLAIN __attribute__((no_sanitize("thread"), no_sanitize("undefined"), no_sanitize_coverage))
#endif

namespace kernelsim {

template <class T>
constexpr uint32_t parameter_kind() {
  using V = std::remove_cv_t<T>;
  if (std::is_pointer<V>::value) return 0;
  if (std::is_same<V, __half>::value) return 4;
  if (std::is_same<V, __nv_bfloat16>::value) return 5;
  if (std::is_floating_point<V>::value) return 3;
  if (std::is_enum<V>::value) return 1;
  if (std::is_integral<V>::value) return std::is_signed<V>::value ? 1 : 2;
  return 6;
}

// The compiler puts the type's name into this string, the only portable way to get it without RTTI.
template <class T>
constexpr const char* type_in_name() {
  return __PRETTY_FUNCTION__;
}

template <class Function>
struct Signature;

template <class... Parameters>
struct Signature<void (*)(Parameters...)> {
  // As nvcc does, from the bytes of the launch: also a class whose copy constructor is its author's.
  static_assert((std::is_copy_constructible<std::remove_reference_t<Parameters>>::value && ...),
                "a kernel's parameters are copied");

  // Not instrumented: it may be called while the kernel runs in another thread.
  KERNELSIM_PLAIN static const Parameter* describe(uint32_t* count) {
    static const Parameter parameters[] = {
        {uint32_t(sizeof(Parameters)), parameter_kind<Parameters>(), type_in_name<std::remove_cv_t<Parameters>>()}...,
        {0, 0, nullptr}};
    *count = sizeof...(Parameters);
    return parameters;
  }

  // Not instrumented: the arguments are in memory of the launch, not of the kernel.
  template <void (*kernel)(Parameters...), std::size_t... Index>
  __attribute__((no_sanitize("thread"), no_sanitize("undefined"))) static void call(void** arguments,
                                                                                 std::index_sequence<Index...>) {
    (void)arguments;
    kernel(*static_cast<std::remove_cv_t<Parameters>*>(arguments[Index])...);
  }
  using Indices = std::index_sequence_for<Parameters...>;
};

}  // namespace kernelsim

#define KERNELSIM_KERNEL_ENTRY(...)                                                                             \
  extern "C" __attribute__((visibility("hidden"), no_sanitize("thread"), no_sanitize("undefined"))) void        \
  kernelsim_kernel_entry(void** arguments) {                                                                    \
    using Kernel = kernelsim::Signature<decltype(&__VA_ARGS__)>;                                                \
    Kernel::template call<&__VA_ARGS__>(arguments, typename Kernel::Indices{});                                 \
  }                                                                                                             \
  extern "C" __attribute__((visibility("default"))) KERNELSIM_PLAIN const kernelsim::Parameter*                 \
  kernelsim_parameters(                                                                                         \
      uint32_t* count) {                                                                                        \
    return kernelsim::Signature<decltype(&__VA_ARGS__)>::describe(count);                                       \
  }
