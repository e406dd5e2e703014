// 8-bit floating types: conversions with one rounding, to the nearest even. E4M3 has no infinity, and its largest value
// is 448; E5M2's is 57,344.
#pragma once
#include "kernelsim.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

namespace kernelsim {

struct Fp8Format {
  int fraction, least_exponent;
  unsigned largest, beyond;  // the codes of the largest value, and of what exceeds it without saturation
};
KERNELSIM_INLINE constexpr Fp8Format fp8_format(__nv_fp8_interpretation_t kind) {
  return kind == __NV_E4M3 ? Fp8Format{3, -6, 0x7e, 0x7f} : Fp8Format{2, -14, 0x7b, 0x7c};
}

inline unsigned char encode_fp8(double value, __nv_saturation_t saturation, __nv_fp8_interpretation_t kind) {
  const Fp8Format format = fp8_format(kind);
  if (value != value) return 0x7f;
  const unsigned sign = __builtin_signbit(value) ? 0x80 : 0;
  const double magnitude = __builtin_fabs(value);
  if (magnitude == 0) return (unsigned char)sign;
  const unsigned beyond = saturation == __NV_SATFINITE ? format.largest : format.beyond;
  if (magnitude > 1e6) return (unsigned char)(sign | beyond);
  int exponent;
  (void)__builtin_frexp(magnitude, &exponent);
  exponent = exponent - 1 < format.least_exponent ? format.least_exponent : exponent - 1;
  const double units = __builtin_rint(__builtin_ldexp(magnitude, format.fraction - exponent));
  // The hidden bit adds one to the exponent's field, and so does a carry out of the fraction.
  const unsigned code = (unsigned(exponent - format.least_exponent) << format.fraction) + unsigned(units);
  return (unsigned char)(sign | (code > format.largest ? beyond : code));
}

inline float decode_fp8(unsigned char code, __nv_fp8_interpretation_t kind) {
  const Fp8Format format = fp8_format(kind);
  const unsigned magnitude = code & 0x7fu, field = magnitude >> format.fraction;
  const float sign = code & 0x80u ? -1.0f : 1.0f;
  if (magnitude > format.largest) return kind == __NV_E5M2 && magnitude == format.beyond ? sign * INFINITY : NAN;
  const unsigned rest = magnitude & ((1u << format.fraction) - 1u);
  const unsigned units = field ? rest | 1u << format.fraction : rest;
  const int exponent = (field ? int(field) - 1 : 0) + format.least_exponent - format.fraction;
  return sign * float(__builtin_ldexp(double(units), exponent));
}

}  // namespace kernelsim

#define KERNELSIM_TO_FP8(NAME, T, VALUE)                                                                        \
  KERNELSIM_INLINE __nv_fp8_storage_t NAME(T v, __nv_saturation_t saturation, __nv_fp8_interpretation_t kind) { \
    return kernelsim::encode_fp8(VALUE, saturation, kind);                                                      \
  }
KERNELSIM_TO_FP8(__nv_cvt_float_to_fp8, float, v)
KERNELSIM_TO_FP8(__nv_cvt_double_to_fp8, double, v)
KERNELSIM_TO_FP8(__nv_cvt_halfraw_to_fp8, __half_raw, __half2float(v))
KERNELSIM_TO_FP8(__nv_cvt_bfloat16raw_to_fp8, __nv_bfloat16_raw, __bfloat162float(v))
#undef KERNELSIM_TO_FP8
KERNELSIM_INLINE __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t saturation,
                                                              __nv_fp8_interpretation_t kind) {
  return (__nv_fp8x2_storage_t)(kernelsim::encode_fp8(v.x, saturation, kind) |
                                kernelsim::encode_fp8(v.y, saturation, kind) << 8);
}
KERNELSIM_INLINE __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t v, __nv_fp8_interpretation_t kind) {
  return __float2half_rn(kernelsim::decode_fp8(v, kind));
}
KERNELSIM_INLINE __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t v, __nv_fp8_interpretation_t kind) {
  return __half2(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)v, kind),
                 __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)(v >> 8), kind));
}

#define KERNELSIM_FP8(SUFFIX, KIND)                                                                                  \
  struct __nv_fp8_##SUFFIX {                                                                                         \
    __nv_fp8_storage_t __x;                                                                                          \
    __nv_fp8_##SUFFIX() = default;                                                                                   \
    KERNELSIM_INLINE explicit __nv_fp8_##SUFFIX(float v) : __x(kernelsim::encode_fp8(v, __NV_SATFINITE, KIND)) {}     \
    KERNELSIM_INLINE explicit __nv_fp8_##SUFFIX(double v) : __x(kernelsim::encode_fp8(v, __NV_SATFINITE, KIND)) {}    \
    KERNELSIM_INLINE explicit __nv_fp8_##SUFFIX(int v) : __nv_fp8_##SUFFIX(double(v)) {}                             \
    KERNELSIM_INLINE explicit __nv_fp8_##SUFFIX(__half v) : __nv_fp8_##SUFFIX(__half2float(v)) {}                    \
    KERNELSIM_INLINE explicit __nv_fp8_##SUFFIX(__nv_bfloat16 v) : __nv_fp8_##SUFFIX(__bfloat162float(v)) {}         \
    KERNELSIM_INLINE explicit operator float() const { return kernelsim::decode_fp8(__x, KIND); }                    \
    KERNELSIM_INLINE explicit operator double() const { return kernelsim::decode_fp8(__x, KIND); }                   \
    KERNELSIM_INLINE explicit operator __half() const { return __float2half_rn(float(*this)); }                      \
    KERNELSIM_INLINE explicit operator __nv_bfloat16() const { return __float2bfloat16_rn(float(*this)); }           \
  };                                                                                                                 \
  struct alignas(2) __nv_fp8x2_##SUFFIX {                                                                            \
    __nv_fp8x2_storage_t __x;                                                                                        \
    __nv_fp8x2_##SUFFIX() = default;                                                                                 \
    KERNELSIM_INLINE explicit __nv_fp8x2_##SUFFIX(float2 v)                                                          \
        : __x(__nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, KIND)) {}                                                  \
    KERNELSIM_INLINE explicit operator float2() const {                                                              \
      return {kernelsim::decode_fp8((unsigned char)__x, KIND),                                                       \
              kernelsim::decode_fp8((unsigned char)(__x >> 8), KIND)};                                               \
    }                                                                                                                \
  };                                                                                                                 \
  struct alignas(4) __nv_fp8x4_##SUFFIX {                                                                            \
    __nv_fp8x4_storage_t __x;                                                                                        \
    __nv_fp8x4_##SUFFIX() = default;                                                                                 \
    KERNELSIM_INLINE explicit __nv_fp8x4_##SUFFIX(float4 v)                                                          \
        : __x(__nv_cvt_float2_to_fp8x2({v.x, v.y}, __NV_SATFINITE, KIND) |                                           \
              __nv_fp8x4_storage_t(__nv_cvt_float2_to_fp8x2({v.z, v.w}, __NV_SATFINITE, KIND)) << 16) {}             \
    KERNELSIM_INLINE explicit operator float4() const {                                                              \
      return {kernelsim::decode_fp8((unsigned char)__x, KIND),                                                       \
              kernelsim::decode_fp8((unsigned char)(__x >> 8), KIND),                                                \
              kernelsim::decode_fp8((unsigned char)(__x >> 16), KIND),                                               \
              kernelsim::decode_fp8((unsigned char)(__x >> 24), KIND)};                                              \
    }                                                                                                                \
  };
KERNELSIM_FP8(e4m3, __NV_E4M3)
KERNELSIM_FP8(e5m2, __NV_E5M2)
#undef KERNELSIM_FP8
