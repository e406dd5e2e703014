// What published CUDA sources take from the C and C++ standard headers, for NVRTC, which has none of these. It is
// included before every source; the headers themselves are then empty (nvrtc_headers.py). libcu++ declares the same
// types, so a source may include that too.
#pragma once

#ifndef __linux__  // which sources ask for; NVRTC does not say it
#define __linux__ 1
#endif

// The version of CUDA's runtime, which nvcc's own headers define for every source.
#ifndef CUDART_VERSION
#define CUDART_VERSION (__CUDACC_VER_MAJOR__ * 1000 + __CUDACC_VER_MINOR__ * 10)
#endif

// --- <stdint.h>, <stddef.h>, <sys/types.h> ---
typedef signed char int8_t;
typedef signed short int16_t;
typedef signed int int32_t;
typedef signed long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int64_t intptr_t;
typedef uint64_t uintptr_t;
typedef int64_t intmax_t;
typedef uint64_t uintmax_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif

// --- <limits.h>, <stdint.h> ---
#ifndef CHAR_BIT
#define CHAR_BIT 8
#define SCHAR_MIN (-128)
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define CHAR_MIN SCHAR_MIN
#define CHAR_MAX SCHAR_MAX
#define SHRT_MIN (-32768)
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MIN (-2147483647 - 1)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295U
#define LONG_MIN (-9223372036854775807L - 1)
#define LONG_MAX 9223372036854775807L
#define ULONG_MAX 18446744073709551615UL
#define LLONG_MIN (-9223372036854775807LL - 1)
#define LLONG_MAX 9223372036854775807LL
#define ULLONG_MAX 18446744073709551615ULL
#endif
#ifndef INT32_MAX
#define INT8_MIN SCHAR_MIN
#define INT8_MAX SCHAR_MAX
#define INT16_MIN SHRT_MIN
#define INT16_MAX SHRT_MAX
#define INT32_MIN INT_MIN
#define INT32_MAX INT_MAX
#define INT64_MIN LLONG_MIN
#define INT64_MAX LLONG_MAX
#define UINT8_MAX UCHAR_MAX
#define UINT16_MAX USHRT_MAX
#define UINT32_MAX UINT_MAX
#define UINT64_MAX ULLONG_MAX
#define SIZE_MAX UINT64_MAX
#endif

// --- <time.h>: NVRTC has clock() ---
#ifndef CLOCKS_PER_SEC
#define CLOCKS_PER_SEC 1000000l
#endif

// --- <float.h> ---
#ifndef FLT_MAX
#define FLT_RADIX 2
#define FLT_MANT_DIG 24
#define DBL_MANT_DIG 53
#define FLT_DIG 6
#define DBL_DIG 15
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define DBL_MAX 1.7976931348623158e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#endif

// --- <math.h> ---
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef HUGE_VALF
#define HUGE_VALF INFINITY
#define HUGE_VAL __longlong_as_double(0x7ff0000000000000LL)
#endif
#ifndef M_PI
#define M_E 2.71828182845904523536
#define M_LOG2E 1.44269504088896340736
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#endif

// --- <assert.h>: NVRTC declares __assertfail's caller itself in other headers, so only the macro is missing ---
#ifndef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
extern "C" __device__ void __assertfail(const char* message, const char* file, unsigned line, const char* function,
                                        size_t size);
#define assert(condition) \
  ((condition) ? (void)0 : __assertfail(#condition, __FILE__, __LINE__, __func__, sizeof(char)))
#endif
#endif

// --- <algorithm>, <limits>, <type_traits>, <cmath>: the parts that kernels use; NVRTC has move and forward ---
namespace std {

template <class T> __device__ constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T> __device__ constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
// Of a std::initializer_list, which a header of libcu++ may declare.
template <class List> __device__ constexpr auto max(List all) -> decltype(*all.begin() + 0) {
  auto found = *all.begin();
  for (const auto& one : all) found = found < one ? one : found;
  return found;
}
template <class List> __device__ constexpr auto min(List all) -> decltype(*all.begin() + 0) {
  auto found = *all.begin();
  for (const auto& one : all) found = one < found ? one : found;
  return found;
}
template <class T> __device__ constexpr const T& clamp(const T& v, const T& low, const T& high) {
  return v < low ? low : high < v ? high : v;
}

template <class T, T Value> struct integral_constant {
  static constexpr T value = Value;
  typedef T value_type;
  typedef integral_constant type;
  __device__ constexpr operator T() const { return Value; }
};
template <bool Value> using bool_constant = integral_constant<bool, Value>;
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template <bool, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool Condition, class T = void> using enable_if_t = typename enable_if<Condition, T>::type;
template <bool, class A, class B> struct conditional { typedef A type; };
template <class A, class B> struct conditional<false, A, B> { typedef B type; };
template <class...> using void_t = void;
template <bool Condition, class A, class B> using conditional_t = typename conditional<Condition, A, B>::type;
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <class T> struct remove_reference { typedef T type; };
template <class T> struct remove_reference<T&> { typedef T type; };
template <class T> struct remove_reference<T&&> { typedef T type; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_const { typedef T type; };
template <class T> struct remove_const<const T> { typedef T type; };
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> struct remove_volatile { typedef T type; };
template <class T> struct remove_volatile<volatile T> { typedef T type; };
template <class T> struct remove_cv { typedef typename remove_const<typename remove_volatile<T>::type>::type type; };
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_pointer { typedef T type; };
template <class T> struct remove_pointer<T*> { typedef T type; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> using decay_t = remove_cv_t<remove_reference_t<T>>;

template <size_t Size, size_t Alignment = 16> struct aligned_storage {
  struct type { alignas(Alignment) unsigned char bytes[Size]; };
};
template <size_t Size, size_t Alignment = 16>
using aligned_storage_t = typename aligned_storage<Size, Alignment>::type;
struct input_iterator_tag {};
struct output_iterator_tag {};
struct forward_iterator_tag : input_iterator_tag {};
struct bidirectional_iterator_tag : forward_iterator_tag {};
struct random_access_iterator_tag : bidirectional_iterator_tag {};

template <class T> __device__ void swap(T& a, T& b) {
  T before = move(a);
  a = move(b);
  b = move(before);
}

template <class T> struct numeric_limits {
  static constexpr bool is_specialized = false, is_integer = false, is_signed = false, is_exact = false;
  static constexpr bool is_iec559 = false, has_infinity = false, has_quiet_NaN = false;
  static constexpr int digits = 0, digits10 = 0, radix = 0;
};
#define OPWRIGHT_INTEGER_LIMITS(T, LOW, HIGH, BITS, SIGNED)                        \
  template <> struct numeric_limits<T> {                                          \
    static constexpr bool is_specialized = true, is_integer = true, is_signed = SIGNED, is_exact = true; \
    static constexpr bool is_iec559 = false, has_infinity = false, has_quiet_NaN = false;                \
    static constexpr int digits = BITS, digits10 = BITS * 3 / 10, radix = 2;      \
    __device__ static constexpr T min() { return LOW; }                           \
    __device__ static constexpr T lowest() { return LOW; }                        \
    __device__ static constexpr T max() { return HIGH; }                          \
    __device__ static constexpr T epsilon() { return 0; }                         \
  };
OPWRIGHT_INTEGER_LIMITS(char, CHAR_MIN, CHAR_MAX, 7, true)
OPWRIGHT_INTEGER_LIMITS(signed char, SCHAR_MIN, SCHAR_MAX, 7, true)
OPWRIGHT_INTEGER_LIMITS(unsigned char, 0, UCHAR_MAX, 8, false)
OPWRIGHT_INTEGER_LIMITS(short, SHRT_MIN, SHRT_MAX, 15, true)
OPWRIGHT_INTEGER_LIMITS(unsigned short, 0, USHRT_MAX, 16, false)
OPWRIGHT_INTEGER_LIMITS(int, INT_MIN, INT_MAX, 31, true)
OPWRIGHT_INTEGER_LIMITS(unsigned, 0, UINT_MAX, 32, false)
OPWRIGHT_INTEGER_LIMITS(long, LONG_MIN, LONG_MAX, 63, true)
OPWRIGHT_INTEGER_LIMITS(unsigned long, 0, ULONG_MAX, 64, false)
OPWRIGHT_INTEGER_LIMITS(long long, LLONG_MIN, LLONG_MAX, 63, true)
OPWRIGHT_INTEGER_LIMITS(unsigned long long, 0, ULLONG_MAX, 64, false)
#undef OPWRIGHT_INTEGER_LIMITS
#define OPWRIGHT_FLOAT_LIMITS(T, PREFIX, INFINITE, QUIET, DENORM)                       \
  template <> struct numeric_limits<T> {                                               \
    static constexpr bool is_specialized = true, is_integer = false, is_signed = true, is_exact = false; \
    static constexpr bool is_iec559 = true, has_infinity = true, has_quiet_NaN = true; \
    static constexpr int digits = PREFIX##_MANT_DIG, digits10 = PREFIX##_DIG, radix = 2; \
    __device__ static constexpr T min() { return PREFIX##_MIN; }                       \
    __device__ static constexpr T lowest() { return -PREFIX##_MAX; }                   \
    __device__ static constexpr T max() { return PREFIX##_MAX; }                       \
    __device__ static constexpr T epsilon() { return PREFIX##_EPSILON; }               \
    __device__ static constexpr T denorm_min() { return DENORM; }                      \
    __device__ static constexpr T infinity() { return INFINITE; }                      \
    __device__ static constexpr T quiet_NaN() { return QUIET; }                        \
  };
OPWRIGHT_FLOAT_LIMITS(float, FLT, __builtin_bit_cast(float, 0x7f800000), __builtin_bit_cast(float, 0x7fffffff),
                      __builtin_bit_cast(float, 1))
OPWRIGHT_FLOAT_LIMITS(double, DBL, __builtin_bit_cast(double, 0x7ff0000000000000LL),
                      __builtin_bit_cast(double, 0x7fffffffffffffffLL), __builtin_bit_cast(double, 1LL))
#undef OPWRIGHT_FLOAT_LIMITS

template <class T> struct is_floating_point : false_type {};
template <> struct is_floating_point<float> : true_type {};
template <> struct is_floating_point<double> : true_type {};
template <class T> struct is_integral : integral_constant<bool, numeric_limits<T>::is_specialized> {};
template <> struct is_integral<bool> : true_type {};
template <> struct is_integral<float> : false_type {};
template <> struct is_integral<double> : false_type {};
template <class T> inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T> inline constexpr bool is_integral_v = is_integral<T>::value;

using ::size_t;
using ::ptrdiff_t;
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t;
using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t;
using ::intptr_t; using ::uintptr_t;
using ::memcpy; using ::memset;

using ::abs; using ::fabs; using ::floor; using ::ceil; using ::round; using ::trunc; using ::rint; using ::fmod;
using ::sqrt; using ::cbrt; using ::hypot; using ::pow; using ::exp; using ::exp2; using ::expm1; using ::log;
using ::log2; using ::log10; using ::log1p; using ::sin; using ::cos; using ::tan; using ::asin; using ::acos;
using ::atan; using ::atan2; using ::sinh; using ::cosh; using ::tanh; using ::erf; using ::erfc; using ::fma; using ::modf; using ::frexp; using ::ldexp;
using ::fmin; using ::fmax; using ::fminf; using ::fmaxf; using ::fabsf; using ::sqrtf; using ::expf; using ::logf;
using ::powf; using ::floorf; using ::ceilf; using ::roundf; using ::lround; using ::lroundf; using ::lrint; using ::isnan; using ::isinf; using ::isfinite; using ::signbit; using ::copysign;

}  // namespace std
