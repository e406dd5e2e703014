// half and bfloat16: their bits, conversions with one rounding, and CUDA's functions on them.
//
// Arithmetic is done in float and rounded once more. That equals one rounding of the exact result for +, -, *, / and
// sqrt, because float has more than twice as many bits, plus two. An fma is done in double, rounded to odd first.
// Every NaN that is made is the canonical one of the GPU, 0x7fff.
#pragma once

#include "intrinsics.h"
#include "language.h"
#include "vector_types.h"

namespace kernelsim {

enum class Rounding { nearest, zero, up, down };

// A format of 16 bits: how many of them are the stored fraction, and the least exponent of a normal number.
struct HalfFormat {
  static constexpr int fraction = 10, least_exponent = -14, greatest_exponent = 15;
};
struct Bfloat16Format {
  static constexpr int fraction = 7, least_exponent = -126, greatest_exponent = 127;
};

// Rounds the value of a double once. (A float is a double exactly.)
template <class Format>
inline uint16_t encode(double value, Rounding rounding = Rounding::nearest) {
  constexpr int fraction = Format::fraction;
  constexpr uint16_t infinity = uint16_t(uint16_t(Format::greatest_exponent - Format::least_exponent + 2) << fraction);
  const uint64_t bits = bits_as<uint64_t>(value);
  const uint16_t sign = uint16_t(bits >> 63 << 15);
  if (value != value) return 0x7fff;
  if ((bits << 1) == 0) return sign;
  const int biased = int(bits >> 52 & 0x7ff);
  if (biased == 0x7ff) return uint16_t(sign | infinity);
  if (biased == 0) {  // a subnormal double is far below either format's least value, but not zero
    const bool away = sign ? rounding == Rounding::down : rounding == Rounding::up;
    return uint16_t(sign | (away ? 1 : 0));
  }
  const int exponent = biased - 1023;
  const uint64_t significand = (bits & ((uint64_t(1) << 52) - 1)) | uint64_t(1) << 52;
  const int base = exponent > Format::least_exponent ? exponent : Format::least_exponent;
  const int shift = 52 - fraction + (base - exponent);  // how many low bits do not fit
  const uint64_t kept = shift > 62 ? 0 : significand >> shift;
  const uint64_t rest = shift > 62 ? 1 : significand & ((uint64_t(1) << shift) - 1);
  const uint64_t half = shift > 62 ? 2 : uint64_t(1) << (shift - 1);
  bool away = false;
  switch (rounding) {
    case Rounding::nearest: away = rest > half || (rest == half && (kept & 1)); break;
    case Rounding::zero: break;
    case Rounding::up: away = rest != 0 && !sign; break;
    case Rounding::down: away = rest != 0 && sign; break;
  }
  // The hidden bit of `kept` adds one to the exponent field, and so does a carry out of the fraction.
  uint64_t magnitude = (uint64_t(base - Format::least_exponent) << fraction) + kept + (away ? 1 : 0);
  if (magnitude >= infinity) {
    const bool to_infinity = rounding == Rounding::nearest || (sign ? rounding == Rounding::down : rounding == Rounding::up);
    magnitude = to_infinity ? infinity : infinity - 1;
  }
  return uint16_t(sign | magnitude);
}

// a * b + c with one rounding: the product is exact in a double, and the sum is rounded to odd, which keeps
// enough information for the second rounding to be correct.
template <class Format>
inline uint16_t encode_fma(float a, float b, float c, Rounding rounding = Rounding::nearest) {
  const double product = double(a) * double(b), addend = c;
  double sum = unfused(product + addend);
  if (sum - sum == 0.0) {  // finite
    const double part = unfused(sum - product);
    const double lost = unfused(unfused(product - unfused(sum - part)) + unfused(addend - part));
    uint64_t bits = bits_as<uint64_t>(sum);
    if (lost != 0.0 && !(bits & 1)) {
      bits += (lost > 0.0) == (sum > 0.0) ? 1 : uint64_t(-1);
      sum = bits_as<double>(bits);
    }
  }
  return encode<Format>(sum, rounding);
}

KERNELSIM_INLINE float decode_half(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1fu, fraction = bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: an exact multiple of 2^-24
    const float magnitude = float(fraction) * 5.9604644775390625e-8f;
    return bits_as<float>(bits_as<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return bits_as<float>(sign | 0x7f800000u | fraction << 13);
  return bits_as<float>(sign | (exponent + 112) << 23 | fraction << 13);
}
KERNELSIM_INLINE float decode_bfloat16(uint16_t bits) { return bits_as<float>(uint32_t(bits) << 16); }

template <class Scalar>
Scalar from_value(double value, Rounding rounding = Rounding::nearest);

}  // namespace kernelsim

#define KERNELSIM_SCALAR __half
#define KERNELSIM_PAIR __half2
#define KERNELSIM_FORMAT kernelsim::HalfFormat
#define KERNELSIM_DECODE kernelsim::decode_half
#define KERNELSIM_NAME(before, after) before##half##after
#define KERNELSIM_PAIR_NAME(before, after) before##half2##after
#define KERNELSIM_RAW __half_raw
#define KERNELSIM_RAW_PAIR __half2_raw
#ifndef __CUDA_NO_HALF_CONVERSIONS__
#define KERNELSIM_CONVERSIONS
#endif
#ifndef __CUDA_NO_HALF_OPERATORS__
#define KERNELSIM_OPERATORS
#endif
#ifndef __CUDA_NO_HALF2_OPERATORS__
#define KERNELSIM_PAIR_OPERATORS
#endif
#include "float16_family.h"

#define KERNELSIM_SCALAR __nv_bfloat16
#define KERNELSIM_PAIR __nv_bfloat162
#define KERNELSIM_FORMAT kernelsim::Bfloat16Format
#define KERNELSIM_DECODE kernelsim::decode_bfloat16
#define KERNELSIM_NAME(before, after) before##bfloat16##after
#define KERNELSIM_PAIR_NAME(before, after) before##bfloat162##after
#define KERNELSIM_RAW __nv_bfloat16_raw
#define KERNELSIM_RAW_PAIR __nv_bfloat162_raw
#ifndef __CUDA_NO_BFLOAT16_CONVERSIONS__
#define KERNELSIM_CONVERSIONS
#endif
#ifndef __CUDA_NO_BFLOAT16_OPERATORS__
#define KERNELSIM_OPERATORS
#endif
#ifndef __CUDA_NO_BFLOAT162_OPERATORS__
#define KERNELSIM_PAIR_OPERATORS
#endif
#include "float16_family.h"

#ifndef CUDA_NO_HALF
using half = __half;
using half2 = __half2;
#endif
using nv_half = __half;
using nv_half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

// Names that only one of the two types has, or has under a second name.
KERNELSIM_INLINE __half __float2half(float v) { return __float2half_rn(v); }
KERNELSIM_INLINE __half __double2half(double v) { return kernelsim::from_value<__half>(v); }
KERNELSIM_INLINE __nv_bfloat16 __float2bfloat16(float v) { return __float2bfloat16_rn(v); }
KERNELSIM_INLINE __nv_bfloat16 __double2bfloat16(double v) { return kernelsim::from_value<__nv_bfloat16>(v); }
KERNELSIM_INLINE __half2 __float2half2_rn(float v) { return {__float2half_rn(v), __float2half_rn(v)}; }
KERNELSIM_INLINE __half2 __floats2half2_rn(float a, float b) { return {__float2half_rn(a), __float2half_rn(b)}; }
KERNELSIM_INLINE __half2 __float22half2_rn(float2 v) { return __floats2half2_rn(v.x, v.y); }
KERNELSIM_INLINE __nv_bfloat162 __float2bfloat162_rn(float v) { return {__float2bfloat16_rn(v), __float2bfloat16_rn(v)}; }
KERNELSIM_INLINE __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return {__float2bfloat16_rn(a), __float2bfloat16_rn(b)};
}
KERNELSIM_INLINE __nv_bfloat162 __float22bfloat162_rn(float2 v) { return __floats2bfloat162_rn(v.x, v.y); }
KERNELSIM_INLINE float2 __half22float2(__half2 v) { return {__half2float(v.x), __half2float(v.y)}; }
KERNELSIM_INLINE float2 __bfloat1622float2(__nv_bfloat162 v) { return {__bfloat162float(v.x), __bfloat162float(v.y)}; }
KERNELSIM_INLINE __half2 __half2half2(__half v) { return {v, v}; }
KERNELSIM_INLINE __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 v) { return {v, v}; }
KERNELSIM_INLINE __half2 __halves2half2(__half a, __half b) { return {a, b}; }
KERNELSIM_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
KERNELSIM_INLINE __half2 make_half2(__half a, __half b) { return {a, b}; }
KERNELSIM_INLINE __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return {a, b}; }
