// What inline PTX is translated to (ptx/assembly.py): registers as their bits, and instructions that C++ has no operator for.
#pragma once

#include "atomics.h"
#include "cluster.h"
#include "matrix.h"
#include "warpgroup.h"
#include "memory.h"
#include "warp.h"

namespace kernelsim {
namespace ptx {

// A register's bits as another type: the same bits, the low ones, or extended with zeros.
template <class To, class From>
KERNELSIM_INLINE To as(const From& from) {
  if constexpr (std::is_same<To, From>::value) {
    return from;
  } else if constexpr (std::is_same<From, bool>::value) {
    return as<To>(uint32_t(from));
  } else if constexpr (std::is_same<To, bool>::value) {
    return as<uint32_t>(from) != 0;
  } else {
    To to{};
    __builtin_memcpy(&to, &from, sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From));
    return to;
  }
}
// A C++ operand of an asm statement as a register: smaller integers are extended, as in a call. By value, as g++ does not
// bind the address of an element of a restrict pointer to a reference.
template <class To, class From>
KERNELSIM_INLINE To operand(From from) {
  if constexpr (std::is_integral<From>::value && std::is_integral<To>::value) {
    return To(from);
  } else {
    return as<To>(from);
  }
}
template <class To, class From>
KERNELSIM_INLINE void assign(To& to, const From& from) {
  if constexpr (std::is_integral<From>::value && std::is_integral<To>::value) {
    to = To(from);
  } else {
    to = as<To>(from);
  }
}

KERNELSIM_INLINE uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, unsigned table) {
  uint32_t result = 0;
  for (unsigned i = 0; i < 8; i++) {
    if (table >> i & 1u) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return result;
}
template <class T>
KERNELSIM_INLINE T bit_field(T value, uint32_t begin, uint32_t length) {
  constexpr unsigned bits = sizeof(T) * 8;
  begin &= 255u, length &= 255u;
  if (length == 0) return 0;
  if (begin >= bits) return std::is_signed<T>::value && value < 0 ? T(-1) : T(0);
  if (length > bits - begin) length = bits - begin;
  using U = std::make_unsigned_t<T>;
  return T(U(value) << (bits - length - begin)) >> (bits - length);
}
template <class T>
KERNELSIM_INLINE T insert_bits(T field, T into, uint32_t begin, uint32_t length) {
  T mask = 0;
  for (uint32_t i = begin & 255u; i < (begin & 255u) + (length & 255u) && i < sizeof(T) * 8; i++) mask |= T(1) << i;
  return (into & ~mask) | (begin >= sizeof(T) * 8 ? 0 : field << begin & mask);
}
template <class T>
KERNELSIM_INLINE T shifted_left(T value, uint32_t by) { return by >= sizeof(T) * 8 ? T(0) : T(value << by); }
template <class T>
KERNELSIM_INLINE T shifted_right(T value, uint32_t by) {
  return by >= sizeof(T) * 8 ? (std::is_signed<T>::value && value < 0 ? T(-1) : T(0)) : T(value >> by);
}
// The number of leading ones and zeros is in the sign of the value's position; all bits set if there is no bit.
template <class T>
KERNELSIM_INLINE uint32_t highest_bit(T value) {
  using U = std::make_unsigned_t<T>;
  const uint64_t bits = U(std::is_signed<T>::value && value < 0 ? ~value : value);
  return bits ? 63u - uint32_t(__builtin_clzll(bits)) : 0xffffffffu;
}

// Conversions: to an integer with a rounding and saturation, to another float with a rounding.
template <class To, class From>
KERNELSIM_INLINE To converted(From value, int rounding /* 0 nearest, 1 zero, 2 down, 3 up */) {
  if constexpr (std::is_same<From, __half>::value || std::is_same<From, __nv_bfloat16>::value) {
    if constexpr (std::is_same<To, From>::value) return value;
    return converted<To>(value_of(value), rounding);
  } else if constexpr (std::is_same<To, __half>::value || std::is_same<To, __nv_bfloat16>::value) {
    constexpr Rounding modes[] = {Rounding::nearest, Rounding::zero, Rounding::down, Rounding::up};
    return from_value<To>(double(value), modes[rounding]);
  } else if constexpr (std::is_integral<To>::value && std::is_floating_point<From>::value) {
    const double v = value;
    return saturate<To>(rounding == 0 ? __builtin_rint(v) : rounding == 1 ? __builtin_trunc(v)
                        : rounding == 2 ? __builtin_floor(v) : __builtin_ceil(v));
  } else {
    return To(value);
  }
}
KERNELSIM_INLINE uint32_t to_tf32(float value) {  // to the nearest, ties away from zero: cvt.rna
  const uint32_t bits = bits_as<uint32_t>(value);
  return value != value ? 0x7fffffffu : (bits + 0x1000u) & 0xffffe000u;
}

template <class T>
struct alignas(2 * sizeof(T)) Pair {
  T v[2];
};
template <class T>
struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) Quad {
  T v[4];
};

}  // namespace ptx
}  // namespace kernelsim

KERNELSIM_INLINE size_t __cvta_generic_to_shared(const void* p) { return kernelsim::ptx::shared_address(p); }
KERNELSIM_INLINE void* __cvta_shared_to_generic(size_t address) {
  return reinterpret_cast<void*>(kernelsim::ptx::from_shared(address));
}
KERNELSIM_INLINE size_t __cvta_generic_to_global(const void* p) { return reinterpret_cast<size_t>(p); }
KERNELSIM_INLINE void* __cvta_global_to_generic(size_t address) { return reinterpret_cast<void*>(address); }
