// What a copy does to the elements that it arrives at: it replaces them, or combines each with its own in one atomic step.

#include <string.h>

#define KERNELSIM_RUNTIME
#include "mbarrier.h"
#include "../include/kernelsim/float16.h"

namespace kernelsim {

namespace {

// The bits of an element, of which the compare-and-swap is one.
template <class T>
using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;

template <class T>
T sum_of(T a, T b) {
  if constexpr (std::is_integral<T>::value) {
    using U = std::make_unsigned_t<T>;
    return T(U(a) + U(b));
  } else if constexpr (std::is_floating_point<T>::value) {
    return a + b;
  } else {
    return sum(a, b);
  }
}

template <class T>
T combined(Combine operation, T old, T value) {
  switch (operation) {
    case Combine::add: return sum_of(old, value);
    case Combine::min: return value < old ? value : old;
    case Combine::max: return old < value ? value : old;
    default: break;
  }
  if constexpr (std::is_integral<T>::value) {
    switch (operation) {
      case Combine::bit_and: return old & value;
      case Combine::bit_or: return old | value;
      case Combine::bit_xor: return old ^ value;
      case Combine::inc: return old >= value ? T(0) : T(old + 1);
      case Combine::dec: return old == 0 || old > value ? value : T(old - 1);
      default: break;
    }
  }
  return value;
}

template <class T>
void combine_all(char* to, const char* from, uint32_t size, Combine operation) {
  for (uint32_t at = 0; at + sizeof(T) <= size; at += sizeof(T)) {
    auto* word = reinterpret_cast<Bits<T>*>(to + at);
    T value;
    memcpy(&value, from + at, sizeof(T));
    Bits<T> old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &old, bits_as<Bits<T>>(combined(operation, bits_as<T>(old), value)), false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
  }
}

}  // namespace

bool is_known(const Combination& how) {
  const Number type = how.type;
  const bool is_half = type == Number::f16 || type == Number::bf16, is_single = type == Number::f32 || type == Number::f64;
  switch (how.operation) {
    case Combine::replace: return true;
    case Combine::add: return type != Number::other;
    case Combine::inc:
    case Combine::dec: return type == Number::u32;
    case Combine::min:
    case Combine::max: return type != Number::other && !is_single;
    default: return type != Number::other && !is_half && !is_single;
  }
}

void put(char* to, const char* from, uint32_t size, const Combination& how) {
  if (how.operation == Combine::replace) {
    memcpy(to, from, size);
    return;
  }
  switch (how.type) {
    case Number::u32: return combine_all<uint32_t>(to, from, size, how.operation);
    case Number::s32: return combine_all<int32_t>(to, from, size, how.operation);
    case Number::u64: return combine_all<uint64_t>(to, from, size, how.operation);
    case Number::s64: return combine_all<int64_t>(to, from, size, how.operation);
    case Number::f16: return combine_all<__half>(to, from, size, how.operation);
    case Number::bf16: return combine_all<__nv_bfloat16>(to, from, size, how.operation);
    case Number::f32: return combine_all<float>(to, from, size, how.operation);
    case Number::f64: return combine_all<double>(to, from, size, how.operation);
    case Number::other: return;
  }
}

}  // namespace kernelsim
