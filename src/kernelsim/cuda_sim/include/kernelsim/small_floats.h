// Floating types of 4 and 6 bits. None of them has infinities or NaN: what is too large becomes the largest value, and
// NaN the largest positive one.
#pragma once

#include "float16.h"
#include "vector_types.h"

enum cudaRoundMode { cudaRoundNearest, cudaRoundZero, cudaRoundPosInf, cudaRoundMinInf };

namespace kernelsim {

struct SmallFormat {
  int exponent_bits, fraction_bits;
  constexpr int sign_bit() const { return exponent_bits + fraction_bits; }
  constexpr int least_exponent() const { return 2 - (1 << (exponent_bits - 1)); }
  constexpr unsigned largest() const { return (1u << sign_bit()) - 1u; }
};

inline unsigned encode_small(double value, SmallFormat format, cudaRoundMode rounding) {
  if (value != value) return format.largest();
  const unsigned sign = __builtin_signbit(value) ? 1u << format.sign_bit() : 0;
  const double magnitude = __builtin_fabs(value);
  if (magnitude == 0) return sign;
  if (magnitude > 64) return sign | format.largest();
  int exponent;
  (void)__builtin_frexp(magnitude, &exponent);
  exponent = exponent - 1 < format.least_exponent() ? format.least_exponent() : exponent - 1;
  const double scaled = __builtin_ldexp(magnitude, format.fraction_bits - exponent);
  const double units = rounding == cudaRoundZero ? __builtin_trunc(scaled) : __builtin_rint(scaled);
  // The hidden bit adds one to the exponent's field, and so does a carry out of the fraction.
  const unsigned code = (unsigned(exponent - format.least_exponent()) << format.fraction_bits) + unsigned(units);
  return sign | (code > format.largest() ? format.largest() : code);
}

inline double decode_small(unsigned code, SmallFormat format) {
  const unsigned magnitude = code & format.largest(), field = magnitude >> format.fraction_bits;
  const unsigned rest = magnitude & ((1u << format.fraction_bits) - 1u);
  const unsigned units = field ? rest | 1u << format.fraction_bits : rest;
  const int exponent = (field ? int(field) - 1 : 0) + format.least_exponent() - format.fraction_bits;
  return (code >> format.sign_bit() & 1u ? -1.0 : 1.0) * __builtin_ldexp(double(units), exponent);
}

}  // namespace kernelsim

// The conversion functions of a kind of types: BITS from one lane to the next in pairs.
#define KERNELSIM_SMALL_CONVERSIONS(NAME, BITS)                                                                             \
  inline __nv_##NAME##_storage_t __nv_cvt_double_to_##NAME(double v, __nv_##NAME##_interpretation_t kind, cudaRoundMode mode) { \
    return __nv_##NAME##_storage_t(kernelsim::encode_small(v, kernelsim::NAME##_format(kind), mode));                         \
  }                                                                                                                         \
  inline __nv_##NAME##_storage_t __nv_cvt_float_to_##NAME(float v, __nv_##NAME##_interpretation_t kind, cudaRoundMode mode) { \
    return __nv_cvt_double_to_##NAME(double(v), kind, mode);                                                                \
  }                                                                                                                         \
  inline __nv_##NAME##_storage_t __nv_cvt_halfraw_to_##NAME(__half_raw v, __nv_##NAME##_interpretation_t kind,               \
                                                           cudaRoundMode mode) {                                             \
    return __nv_cvt_float_to_##NAME(__half2float(v), kind, mode);                                                            \
  }                                                                                                                         \
  inline __nv_##NAME##_storage_t __nv_cvt_bfloat16raw_to_##NAME(__nv_bfloat16_raw v, __nv_##NAME##_interpretation_t kind,    \
                                                               cudaRoundMode mode) {                                        \
    return __nv_cvt_float_to_##NAME(__bfloat162float(v), kind, mode);                                                       \
  }                                                                                                                         \
  inline __nv_##NAME##x2_storage_t __nv_cvt_float2_to_##NAME##x2(float2 v, __nv_##NAME##_interpretation_t kind,              \
                                                                cudaRoundMode mode) {                                       \
    return __nv_##NAME##x2_storage_t(__nv_cvt_float_to_##NAME(v.x, kind, mode) |                                            \
                                     unsigned(__nv_cvt_float_to_##NAME(v.y, kind, mode)) << BITS);                          \
  }                                                                                                                         \
  inline __half_raw __nv_cvt_##NAME##_to_halfraw(__nv_##NAME##_storage_t v, __nv_##NAME##_interpretation_t kind) {           \
    return __half_raw(__float2half_rn(float(kernelsim::decode_small(v, kernelsim::NAME##_format(kind)))));                   \
  }

// The classes of one type, of one, two and four values.
#define KERNELSIM_SMALL_TYPE(NAME, SUFFIX, KIND, BITS)                                                                 \
  struct __nv_##NAME##_##SUFFIX {                                                                                      \
    __nv_##NAME##_storage_t __x;                                                                                       \
    __nv_##NAME##_##SUFFIX() = default;                                                                                \
    explicit __nv_##NAME##_##SUFFIX(double v) : __x(__nv_cvt_double_to_##NAME(v, KIND, cudaRoundNearest)) {}           \
    explicit __nv_##NAME##_##SUFFIX(float v) : __nv_##NAME##_##SUFFIX(double(v)) {}                                    \
    explicit __nv_##NAME##_##SUFFIX(int v) : __nv_##NAME##_##SUFFIX(double(v)) {}                                      \
    explicit __nv_##NAME##_##SUFFIX(__half v) : __nv_##NAME##_##SUFFIX(double(__half2float(v))) {}                     \
    explicit __nv_##NAME##_##SUFFIX(__nv_bfloat16 v) : __nv_##NAME##_##SUFFIX(double(__bfloat162float(v))) {}          \
    explicit operator double() const { return kernelsim::decode_small(__x, kernelsim::NAME##_format(KIND)); }          \
    explicit operator float() const { return float(double(*this)); }                                                   \
    explicit operator __half() const { return __float2half_rn(float(*this)); }                                         \
    explicit operator __nv_bfloat16() const { return __float2bfloat16_rn(float(*this)); }                              \
  };                                                                                                                   \
  struct __nv_##NAME##x2_##SUFFIX {                                                                                    \
    __nv_##NAME##x2_storage_t __x;                                                                                     \
    __nv_##NAME##x2_##SUFFIX() = default;                                                                              \
    explicit __nv_##NAME##x2_##SUFFIX(float2 v) : __x(__nv_cvt_float2_to_##NAME##x2(v, KIND, cudaRoundNearest)) {}     \
    explicit operator float2() const { return {lane(0), lane(1)}; }                                                    \
    float lane(int i) const {                                                                                          \
      return float(kernelsim::decode_small(__x >> (BITS * i), kernelsim::NAME##_format(KIND)));                        \
    }                                                                                                                  \
  };                                                                                                                   \
  struct __nv_##NAME##x4_##SUFFIX {                                                                                    \
    __nv_##NAME##x4_storage_t __x;                                                                                     \
    __nv_##NAME##x4_##SUFFIX() = default;                                                                              \
    explicit __nv_##NAME##x4_##SUFFIX(float4 v)                                                                        \
        : __x(__nv_##NAME##x4_storage_t(                                                                               \
              __nv_cvt_float2_to_##NAME##x2({v.x, v.y}, KIND, cudaRoundNearest) |                                      \
              unsigned(__nv_cvt_float2_to_##NAME##x2({v.z, v.w}, KIND, cudaRoundNearest)) << (2 * BITS))) {}           \
    explicit operator float4() const { return {lane(0), lane(1), lane(2), lane(3)}; }                                  \
    float lane(int i) const {                                                                                          \
      return float(kernelsim::decode_small(unsigned(__x) >> (BITS * i), kernelsim::NAME##_format(KIND)));              \
    }                                                                                                                  \
  };
