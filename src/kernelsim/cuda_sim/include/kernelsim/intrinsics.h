// Arithmetic: min and max, integer and bit intrinsics, conversions with a rounding, float and double intrinsics.
//
// Exact where CUDA is exact (IEEE operations, fma, sqrt, division, conversions, integers). Where CUDA approximates
// (__expf, __sinf, rsqrtf, ...), the value is the correctly rounded one or the C library's.
#pragma once

#include <fenv.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "vector_types.h"

namespace kernelsim {

template <class To, class From>
KERNELSIM_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

// CUDA's conversion: NaN gives 0 (a 64-bit target: its smallest value), and too large values give the nearest limit.
template <class Integer, class Float>
KERNELSIM_INLINE Integer saturate(Float rounded) {
  constexpr Integer lowest = std::is_signed<Integer>::value ? Integer(Integer(1) << (sizeof(Integer) * 8 - 1)) : 0;
  constexpr Integer highest = Integer(~lowest);
  if (rounded != rounded) return sizeof(Integer) == 8 ? Integer(Integer(1) << 63) : 0;
  if (rounded <= Float(lowest)) return lowest;
  if (rounded >= Float(highest)) return highest;
  return Integer(rounded);
}

// One operation in another rounding. Its operands and its result pass through memory that is opaque to
// the compiler, so that it can neither compute before the mode changes nor after it is back.
template <class T, class F>
inline __attribute__((noinline)) T rounded_as(int mode, F operation) {
  const int before = fegetround();
  fesetround(mode);
  __asm__ volatile("" : "+m"(operation) : : "memory");
  T result = operation();
  __asm__ volatile("" : "+m"(result) : : "memory");
  fesetround(before);
  return result;
}

}  // namespace kernelsim

// --- min, max: CUDA's overloads, in the global namespace ---
#define KERNELSIM_MIN_MAX(R, A, B)                                       \
  KERNELSIM_INLINE constexpr R min(A a, B b) {                           \
    return static_cast<R>(b) < static_cast<R>(a) ? static_cast<R>(b) : static_cast<R>(a); \
  }                                                                      \
  KERNELSIM_INLINE constexpr R max(A a, B b) {                           \
    return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(b) : static_cast<R>(a); \
  }
KERNELSIM_MIN_MAX(int, int, int)
KERNELSIM_MIN_MAX(unsigned, unsigned, unsigned)
KERNELSIM_MIN_MAX(unsigned, int, unsigned)
KERNELSIM_MIN_MAX(unsigned, unsigned, int)
KERNELSIM_MIN_MAX(long, long, long)
KERNELSIM_MIN_MAX(unsigned long, unsigned long, unsigned long)
KERNELSIM_MIN_MAX(unsigned long, long, unsigned long)
KERNELSIM_MIN_MAX(unsigned long, unsigned long, long)
KERNELSIM_MIN_MAX(long long, long long, long long)
KERNELSIM_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
KERNELSIM_MIN_MAX(unsigned long long, long long, unsigned long long)
KERNELSIM_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef KERNELSIM_MIN_MAX
KERNELSIM_INLINE float min(float a, float b) { return fminf(a, b); }
KERNELSIM_INLINE float max(float a, float b) { return fmaxf(a, b); }
KERNELSIM_INLINE double min(double a, double b) { return fmin(a, b); }
KERNELSIM_INLINE double max(double a, double b) { return fmax(a, b); }
KERNELSIM_INLINE double min(float a, double b) { return fmin(a, b); }
KERNELSIM_INLINE double max(float a, double b) { return fmax(a, b); }
KERNELSIM_INLINE double min(double a, float b) { return fmin(a, b); }
KERNELSIM_INLINE double max(double a, float b) { return fmax(a, b); }
KERNELSIM_INLINE unsigned umin(unsigned a, unsigned b) { return min(a, b); }
KERNELSIM_INLINE unsigned umax(unsigned a, unsigned b) { return max(a, b); }
KERNELSIM_INLINE long long llmin(long long a, long long b) { return min(a, b); }
KERNELSIM_INLINE long long llmax(long long a, long long b) { return max(a, b); }

// --- bits ---
KERNELSIM_INLINE int __popc(unsigned v) { return __builtin_popcount(v); }
KERNELSIM_INLINE int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
KERNELSIM_INLINE int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
KERNELSIM_INLINE int __clzll(long long v) { return v ? __builtin_clzll(v) : 64; }
KERNELSIM_INLINE int __ffs(int v) { return __builtin_ffs(v); }
KERNELSIM_INLINE int __ffsll(long long v) { return __builtin_ffsll(v); }
KERNELSIM_INLINE unsigned __brev(unsigned v) {
  v = (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
  v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
  v = (v >> 4 & 0x0f0f0f0fu) | (v & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(v);
}
KERNELSIM_INLINE unsigned long long __brevll(unsigned long long v) {
  return (unsigned long long)__brev(unsigned(v)) << 32 | __brev(unsigned(v >> 32));
}
KERNELSIM_INLINE unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) {
    const unsigned nibble = selector >> (4 * i);
    result |= (unsigned(bytes >> (8 * (nibble & 7))) & 0xffu) << (8 * i);
  }
  return result;
}
KERNELSIM_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((uint64_t(high) << 32 | low) << (shift & 31)) >> 32);
}
KERNELSIM_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}
KERNELSIM_INLINE unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
  return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
KERNELSIM_INLINE unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
  return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}
KERNELSIM_INLINE unsigned __fns(unsigned mask, unsigned base, int offset) {
  int found = 0;
  const int step = offset < 0 ? -1 : 1;
  for (int i = int(base), wanted = offset == 0 ? 1 : offset * step; i >= 0 && i < 32; i += step) {
    if (mask >> i & 1u && ++found == wanted) return unsigned(i);
    if (offset == 0) break;
  }
  return 0xffffffffu;
}

// --- integers ---
KERNELSIM_INLINE int __mulhi(int a, int b) { return int((int64_t(a) * b) >> 32); }
KERNELSIM_INLINE unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
KERNELSIM_INLINE long long __mul64hi(long long a, long long b) { return (long long)((__int128(a) * b) >> 64); }
KERNELSIM_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
KERNELSIM_INLINE int __mul24(int a, int b) { return int(unsigned(int(unsigned(a) << 8) >> 8) * unsigned(int(unsigned(b) << 8) >> 8)); }
KERNELSIM_INLINE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
KERNELSIM_INLINE unsigned __sad(int a, int b, unsigned c) { return c + unsigned(a < b ? int64_t(b) - a : int64_t(a) - b); }
KERNELSIM_INLINE unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a < b ? b - a : a - b); }
KERNELSIM_INLINE int __hadd(int a, int b) { return int((int64_t(a) + b) >> 1); }
KERNELSIM_INLINE int __rhadd(int a, int b) { return int((int64_t(a) + b + 1) >> 1); }
KERNELSIM_INLINE unsigned __uhadd(unsigned a, unsigned b) { return unsigned((uint64_t(a) + b) >> 1); }
KERNELSIM_INLINE int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c = int(unsigned(c) + unsigned(int8_t(a >> i) * int8_t(b >> i)));
  return c;
}
KERNELSIM_INLINE unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 32; i += 8) c += uint8_t(a >> i) * uint8_t(b >> i);
  return c;
}

// --- the same bits as another type ---
KERNELSIM_INLINE int __float_as_int(float v) { return kernelsim::bits_as<int>(v); }
KERNELSIM_INLINE unsigned __float_as_uint(float v) { return kernelsim::bits_as<unsigned>(v); }
KERNELSIM_INLINE float __int_as_float(int v) { return kernelsim::bits_as<float>(v); }
KERNELSIM_INLINE float __uint_as_float(unsigned v) { return kernelsim::bits_as<float>(v); }
KERNELSIM_INLINE long long __double_as_longlong(double v) { return kernelsim::bits_as<long long>(v); }
KERNELSIM_INLINE double __longlong_as_double(long long v) { return kernelsim::bits_as<double>(v); }
KERNELSIM_INLINE int __double2hiint(double v) { return int(kernelsim::bits_as<uint64_t>(v) >> 32); }
KERNELSIM_INLINE int __double2loint(double v) { return int(kernelsim::bits_as<uint64_t>(v)); }
KERNELSIM_INLINE double __hiloint2double(int high, int low) {
  return kernelsim::bits_as<double>(uint64_t(unsigned(high)) << 32 | unsigned(low));
}

// --- conversions with a rounding ---
#define KERNELSIM_TO_INTEGER(FROM, F, TO, T)                                                             \
  KERNELSIM_INLINE T __##FROM##2##TO##_rn(F v) { return kernelsim::saturate<T>(__builtin_rint(double(v))); }   \
  KERNELSIM_INLINE T __##FROM##2##TO##_rz(F v) { return kernelsim::saturate<T>(__builtin_trunc(double(v))); }   \
  KERNELSIM_INLINE T __##FROM##2##TO##_ru(F v) { return kernelsim::saturate<T>(__builtin_ceil(double(v))); }    \
  KERNELSIM_INLINE T __##FROM##2##TO##_rd(F v) { return kernelsim::saturate<T>(__builtin_floor(double(v))); }
KERNELSIM_TO_INTEGER(float, float, int, int)
KERNELSIM_TO_INTEGER(float, float, uint, unsigned)
KERNELSIM_TO_INTEGER(float, float, ll, long long)
KERNELSIM_TO_INTEGER(float, float, ull, unsigned long long)
KERNELSIM_TO_INTEGER(double, double, int, int)
KERNELSIM_TO_INTEGER(double, double, uint, unsigned)
KERNELSIM_TO_INTEGER(double, double, ll, long long)
KERNELSIM_TO_INTEGER(double, double, ull, unsigned long long)
#undef KERNELSIM_TO_INTEGER
#define KERNELSIM_DIRECTED(NAME, T, PARAMETERS, EXPRESSION)                                                         \
  KERNELSIM_INLINE T NAME##_rn PARAMETERS { return EXPRESSION; }                                                    \
  KERNELSIM_INLINE T NAME##_rz PARAMETERS {                                                                         \
    return kernelsim::rounded_as<T>(FE_TOWARDZERO, [=] { return EXPRESSION; });                                     \
  }                                                                                                                 \
  KERNELSIM_INLINE T NAME##_ru PARAMETERS {                                                                         \
    return kernelsim::rounded_as<T>(FE_UPWARD, [=] { return EXPRESSION; });                                         \
  }                                                                                                                 \
  KERNELSIM_INLINE T NAME##_rd PARAMETERS {                                                                         \
    return kernelsim::rounded_as<T>(FE_DOWNWARD, [=] { return EXPRESSION; });                                       \
  }
KERNELSIM_DIRECTED(__int2float, float, (int v), float(v))
KERNELSIM_DIRECTED(__uint2float, float, (unsigned v), float(v))
KERNELSIM_DIRECTED(__ll2float, float, (long long v), float(v))
KERNELSIM_DIRECTED(__ull2float, float, (unsigned long long v), float(v))
KERNELSIM_DIRECTED(__ll2double, double, (long long v), double(v))
KERNELSIM_DIRECTED(__ull2double, double, (unsigned long long v), double(v))
KERNELSIM_DIRECTED(__double2float, float, (double v), float(v))
KERNELSIM_DIRECTED(__frcp, float, (float v), 1.0f / v)
KERNELSIM_DIRECTED(__fsqrt, float, (float v), __builtin_sqrtf(v))
KERNELSIM_DIRECTED(__fdiv, float, (float a, float b), a / b)
KERNELSIM_DIRECTED(__fmaf, float, (float a, float b, float c), __builtin_fmaf(a, b, c))
KERNELSIM_DIRECTED(__drcp, double, (double v), 1.0 / v)
KERNELSIM_DIRECTED(__dsqrt, double, (double v), __builtin_sqrt(v))
KERNELSIM_DIRECTED(__ddiv, double, (double a, double b), a / b)
KERNELSIM_DIRECTED(__fma, double, (double a, double b, double c), __builtin_fma(a, b, c))
KERNELSIM_INLINE double __int2double_rn(int v) { return v; }
KERNELSIM_INLINE double __uint2double_rn(unsigned v) { return v; }

// These exist so that the compiler does not fuse them into an fma: the sum or product passes through a barrier.
namespace kernelsim {
template <class T>
KERNELSIM_INLINE T unfused(T v) {
  // As an integer, so that it is the same barrier on every machine.
  typename std::conditional<sizeof(T) == 4, uint32_t, uint64_t>::type bits = bits_as<decltype(bits)>(v);
  __asm__("" : "+r"(bits));
  return bits_as<T>(bits);
}
}  // namespace kernelsim
KERNELSIM_DIRECTED(__fadd, float, (float a, float b), kernelsim::unfused(kernelsim::unfused(a) + kernelsim::unfused(b)))
KERNELSIM_DIRECTED(__fsub, float, (float a, float b), kernelsim::unfused(kernelsim::unfused(a) - kernelsim::unfused(b)))
KERNELSIM_DIRECTED(__fmul, float, (float a, float b), kernelsim::unfused(a* b))
KERNELSIM_DIRECTED(__dadd, double, (double a, double b), kernelsim::unfused(kernelsim::unfused(a) + kernelsim::unfused(b)))
KERNELSIM_DIRECTED(__dsub, double, (double a, double b), kernelsim::unfused(kernelsim::unfused(a) - kernelsim::unfused(b)))
KERNELSIM_DIRECTED(__dmul, double, (double a, double b), kernelsim::unfused(a* b))
#undef KERNELSIM_DIRECTED
KERNELSIM_INLINE float __fdividef(float a, float b) { return a / b; }
KERNELSIM_INLINE float __frsqrt_rn(float v) { return float(1.0 / __builtin_sqrt(double(v))); }
KERNELSIM_INLINE float __saturatef(float v) { return v > 0.0f ? (v < 1.0f ? v : 1.0f) : 0.0f; }

// --- functions that the C library lacks, or has under CUDA's reserved names ---
namespace kernelsim {
KERNELSIM_INLINE float fast_expf(float v) { return expf(v); }
KERNELSIM_INLINE float fast_exp10f(float v) { return float(__builtin_pow(10.0, double(v))); }
KERNELSIM_INLINE float fast_logf(float v) { return logf(v); }
KERNELSIM_INLINE float fast_log2f(float v) { return log2f(v); }
KERNELSIM_INLINE float fast_log10f(float v) { return log10f(v); }
KERNELSIM_INLINE float fast_sinf(float v) { return sinf(v); }
KERNELSIM_INLINE float fast_cosf(float v) { return cosf(v); }
KERNELSIM_INLINE float fast_tanf(float v) { return tanf(v); }
KERNELSIM_INLINE float fast_tanhf(float v) { return tanhf(v); }
KERNELSIM_INLINE float fast_powf(float a, float b) { return powf(a, b); }
KERNELSIM_INLINE void fast_sincosf(float v, float* s, float* c) { *s = sinf(v), *c = cosf(v); }
KERNELSIM_INLINE float rsqrt_float(float v) { return float(1.0 / __builtin_sqrt(double(v))); }
KERNELSIM_INLINE double rsqrt_double(double v) { return 1.0 / __builtin_sqrt(v); }
KERNELSIM_INLINE float rsqrt_any(float v) { return rsqrt_float(v); }
KERNELSIM_INLINE double rsqrt_any(double v) { return rsqrt_double(v); }
// sin(pi v) with the argument reduced exactly first.
inline double sinpi_double(double v) { return sin(M_PI * (v - 2.0 * rint(v / 2.0))); }
inline double cospi_double(double v) { return cos(M_PI * (v - 2.0 * rint(v / 2.0))); }
inline float sinpi_float(float v) { return float(sinpi_double(v)); }
inline float cospi_float(float v) { return float(cospi_double(v)); }
inline void sincospi_double(double v, double* s, double* c) { *s = sinpi_double(v), *c = cospi_double(v); }
inline void sincospi_float(float v, float* s, float* c) { *s = sinpi_float(v), *c = cospi_float(v); }

// The inverses of erfc and erf: an approximation (Abramowitz and Stegun, 26.2.23), then Halley's and Newton's method.
constexpr double erf_slope = 1.12837916709551257390;  // of erf at 0
inline double inverse_erfc(double y) {
  if (!(y >= 0 && y <= 2)) return __builtin_nan("");
  if (y == 0 || y == 2) return y == 0 ? __builtin_inf() : -__builtin_inf();
  const double tail = y <= 1 ? y : 2 - y, t = sqrt(-2 * log(tail / 2));
  double x = (t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)))) * M_SQRT1_2;
  for (int i = 0; i < 3; i++) {
    const double error = erfc(x) - tail;
    x += error / (erf_slope * exp(-x * x) - x * error);
  }
  return y <= 1 ? x : -x;
}
inline double inverse_erf(double y) {
  if (!(fabs(y) < 1)) return fabs(y) == 1 ? y * __builtin_inf() : __builtin_nan("");
  double x = fabs(y) < 0.5 ? y / erf_slope : inverse_erfc(1 - y);
  for (int i = 0; i < 4; i++) x -= (erf(x) - y) / (erf_slope * exp(-x * x));
  return x;
}
inline double exp10_double(double v) { return pow(10.0, v); }
inline float exp10_float(float v) { return float(pow(10.0, double(v))); }
}  // namespace kernelsim
// glibc's headers declare some of these names for themselves, or will (C23), hence macros.
#define __expf kernelsim::fast_expf
#define __exp10f kernelsim::fast_exp10f
#define __logf kernelsim::fast_logf
#define __log2f kernelsim::fast_log2f
#define __log10f kernelsim::fast_log10f
#define __sinf kernelsim::fast_sinf
#define __cosf kernelsim::fast_cosf
#define __tanf kernelsim::fast_tanf
#define __tanhf kernelsim::fast_tanhf
#define __powf kernelsim::fast_powf
#define __sincosf kernelsim::fast_sincosf
#define rsqrtf kernelsim::rsqrt_float
#define rsqrt kernelsim::rsqrt_any
#define sinpi kernelsim::sinpi_double
#define cospi kernelsim::cospi_double
#define sinpif kernelsim::sinpi_float
#define cospif kernelsim::cospi_float
#define sincospi kernelsim::sincospi_double
#define sincospif kernelsim::sincospi_float
#define exp10 kernelsim::exp10_double
#define exp10f kernelsim::exp10_float
inline float normcdff(float v) { return float(0.5 * erfc(double(v) * -M_SQRT1_2)); }
inline double normcdf(double v) { return 0.5 * erfc(v * -M_SQRT1_2); }
inline double erfcinv(double v) { return kernelsim::inverse_erfc(v); }
inline float erfcinvf(float v) { return float(kernelsim::inverse_erfc(v)); }
inline double erfinv(double v) { return kernelsim::inverse_erf(v); }
inline float erfinvf(float v) { return float(kernelsim::inverse_erf(v)); }
inline double normcdfinv(double v) { return -M_SQRT2 * kernelsim::inverse_erfc(2 * v); }
inline float normcdfinvf(float v) { return float(normcdfinv(v)); }
inline float rcbrtf(float v) { return float(1.0 / cbrt(double(v))); }
inline double rcbrt(double v) { return 1.0 / cbrt(v); }
inline float rhypotf(float a, float b) { return float(1.0 / hypot(double(a), double(b))); }
inline float erfcxf(float v) { return float(exp(double(v) * v) * erfc(double(v))); }
inline float fdividef(float a, float b) { return a / b; }
