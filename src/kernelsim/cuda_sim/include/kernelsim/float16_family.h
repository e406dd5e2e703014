// One 16-bit floating type and its pair, with CUDA's functions on them. float16.h includes this file once for half
// and once for bfloat16 (hence no include guard). Macros set which of the two it is.

struct KERNELSIM_RAW {
  unsigned short x;
};
struct alignas(4) KERNELSIM_RAW_PAIR {
  unsigned short x, y;
};

struct alignas(2) KERNELSIM_SCALAR {
  unsigned short bits;

  KERNELSIM_SCALAR() = default;  // indeterminate, as on the GPU: it may be in shared memory
  KERNELSIM_INLINE constexpr KERNELSIM_SCALAR(const KERNELSIM_RAW& raw) : bits(raw.x) {}
  KERNELSIM_INLINE KERNELSIM_SCALAR(float v) : bits(kernelsim::encode<KERNELSIM_FORMAT>(v)) {}
  KERNELSIM_INLINE KERNELSIM_SCALAR(double v) : bits(kernelsim::encode<KERNELSIM_FORMAT>(v)) {}
  KERNELSIM_INLINE constexpr operator KERNELSIM_RAW() const { return {bits}; }
  KERNELSIM_INLINE operator float() const { return KERNELSIM_DECODE(bits); }
#ifdef KERNELSIM_CONVERSIONS
#define KERNELSIM_CONVERT(T)                                                                        \
  KERNELSIM_INLINE KERNELSIM_SCALAR(T v) : bits(kernelsim::encode<KERNELSIM_FORMAT>(double(v))) {} \
  KERNELSIM_INLINE operator T() const { return kernelsim::saturate<T>(__builtin_truncf(KERNELSIM_DECODE(bits))); }  \
  KERNELSIM_INLINE KERNELSIM_SCALAR& operator=(T v) { return *this = KERNELSIM_SCALAR(v); }
  KERNELSIM_CONVERT(short)
  KERNELSIM_CONVERT(unsigned short)
  KERNELSIM_CONVERT(int)
  KERNELSIM_CONVERT(unsigned)
  KERNELSIM_CONVERT(long)
  KERNELSIM_CONVERT(unsigned long)
  KERNELSIM_CONVERT(long long)
  KERNELSIM_CONVERT(unsigned long long)
#undef KERNELSIM_CONVERT
  KERNELSIM_INLINE KERNELSIM_SCALAR& operator=(float v) { return *this = KERNELSIM_SCALAR(v); }
  KERNELSIM_INLINE KERNELSIM_SCALAR& operator=(double v) { return *this = KERNELSIM_SCALAR(v); }
  KERNELSIM_INLINE operator bool() const { return (bits & 0x7fffu) != 0; }
#endif
};

struct alignas(4) KERNELSIM_PAIR {
  KERNELSIM_SCALAR x, y;

  KERNELSIM_PAIR() = default;
  KERNELSIM_INLINE constexpr KERNELSIM_PAIR(const KERNELSIM_SCALAR& x, const KERNELSIM_SCALAR& y) : x(x), y(y) {}
  KERNELSIM_INLINE KERNELSIM_PAIR(const KERNELSIM_RAW_PAIR& raw) : x(KERNELSIM_RAW{raw.x}), y(KERNELSIM_RAW{raw.y}) {}
  KERNELSIM_INLINE operator KERNELSIM_RAW_PAIR() const { return {x.bits, y.bits}; }
};

namespace kernelsim {

template <>
KERNELSIM_INLINE KERNELSIM_SCALAR from_value<KERNELSIM_SCALAR>(double value, Rounding rounding) {
  return KERNELSIM_RAW{encode<KERNELSIM_FORMAT>(value, rounding)};
}
KERNELSIM_INLINE float value_of(KERNELSIM_SCALAR v) { return KERNELSIM_DECODE(v.bits); }
KERNELSIM_INLINE KERNELSIM_SCALAR sum(KERNELSIM_SCALAR a, KERNELSIM_SCALAR b) {
  return from_value<KERNELSIM_SCALAR>(unfused(value_of(a) + value_of(b)));
}
KERNELSIM_INLINE KERNELSIM_SCALAR fused(KERNELSIM_SCALAR a, KERNELSIM_SCALAR b, KERNELSIM_SCALAR c) {
  return KERNELSIM_RAW{encode_fma<KERNELSIM_FORMAT>(value_of(a), value_of(b), value_of(c))};
}
KERNELSIM_INLINE KERNELSIM_SCALAR to_unit_interval(KERNELSIM_SCALAR v) {  // NaN gives 0
  const float value = value_of(v);
  return value >= 1.0f ? from_value<KERNELSIM_SCALAR>(1.0) : value > 0.0f ? v : from_value<KERNELSIM_SCALAR>(0.0);
}
KERNELSIM_INLINE KERNELSIM_SCALAR not_negative(KERNELSIM_SCALAR v) {
  const float value = value_of(v);
  return value != value ? from_value<KERNELSIM_SCALAR>(NAN) : value > 0.0f ? v : from_value<KERNELSIM_SCALAR>(0.0);
}
// -0 is less than +0 here; a NaN loses, or wins on request.
KERNELSIM_INLINE KERNELSIM_SCALAR lesser(KERNELSIM_SCALAR a, KERNELSIM_SCALAR b, bool nan_wins) {
  const float p = value_of(a), q = value_of(b);
  if (p != p || q != q) {
    if (nan_wins || (p != p && q != q)) return from_value<KERNELSIM_SCALAR>(NAN);
    return p != p ? b : a;
  }
  if (p == q) return a.bits & 0x8000u ? a : b;
  return p < q ? a : b;
}
KERNELSIM_INLINE KERNELSIM_SCALAR negated(KERNELSIM_SCALAR v) { return KERNELSIM_RAW{(unsigned short)(v.bits ^ 0x8000u)}; }
KERNELSIM_INLINE KERNELSIM_SCALAR greater(KERNELSIM_SCALAR a, KERNELSIM_SCALAR b, bool nan_wins) {
  const float p = value_of(a), q = value_of(b);
  if (p != p || q != q) return lesser(a, b, nan_wins);
  if (p == q) return a.bits & 0x8000u ? b : a;
  return p < q ? b : a;
}

}  // namespace kernelsim

// --- conversions ---
#define KERNELSIM_ROUNDINGS(SUFFIX, ROUNDING)                                                                      \
  KERNELSIM_INLINE KERNELSIM_SCALAR KERNELSIM_NAME(__float2, SUFFIX)(float v) {                                    \
    return kernelsim::from_value<KERNELSIM_SCALAR>(v, kernelsim::Rounding::ROUNDING);                              \
  }                                                                                                                \
  KERNELSIM_INLINE KERNELSIM_SCALAR KERNELSIM_NAME(__int2, SUFFIX)(int v) {                                        \
    return kernelsim::from_value<KERNELSIM_SCALAR>(v, kernelsim::Rounding::ROUNDING);                              \
  }                                                                                                                \
  KERNELSIM_INLINE KERNELSIM_SCALAR KERNELSIM_NAME(__uint2, SUFFIX)(unsigned v) {                                  \
    return kernelsim::from_value<KERNELSIM_SCALAR>(v, kernelsim::Rounding::ROUNDING);                              \
  }                                                                                                                \
  KERNELSIM_INLINE KERNELSIM_SCALAR KERNELSIM_NAME(__short2, SUFFIX)(short v) {                                    \
    return kernelsim::from_value<KERNELSIM_SCALAR>(v, kernelsim::Rounding::ROUNDING);                              \
  }                                                                                                                \
  KERNELSIM_INLINE KERNELSIM_SCALAR KERNELSIM_NAME(__ushort2, SUFFIX)(unsigned short v) {                          \
    return kernelsim::from_value<KERNELSIM_SCALAR>(v, kernelsim::Rounding::ROUNDING);                              \
  }
KERNELSIM_ROUNDINGS(_rn, nearest)
KERNELSIM_ROUNDINGS(_rz, zero)
KERNELSIM_ROUNDINGS(_ru, up)
KERNELSIM_ROUNDINGS(_rd, down)
#undef KERNELSIM_ROUNDINGS
KERNELSIM_INLINE float KERNELSIM_NAME(__, 2float)(KERNELSIM_SCALAR v) { return kernelsim::value_of(v); }
#define KERNELSIM_TO(SUFFIX, T)                                                            \
  KERNELSIM_INLINE T KERNELSIM_NAME(__, 2##SUFFIX##_rn)(KERNELSIM_SCALAR v) {              \
    return kernelsim::saturate<T>(__builtin_rint(double(kernelsim::value_of(v))));         \
  }                                                                                        \
  KERNELSIM_INLINE T KERNELSIM_NAME(__, 2##SUFFIX##_rz)(KERNELSIM_SCALAR v) {              \
    return kernelsim::saturate<T>(__builtin_trunc(double(kernelsim::value_of(v))));        \
  }                                                                                        \
  KERNELSIM_INLINE T KERNELSIM_NAME(__, 2##SUFFIX##_ru)(KERNELSIM_SCALAR v) {              \
    return kernelsim::saturate<T>(__builtin_ceil(double(kernelsim::value_of(v))));         \
  }                                                                                        \
  KERNELSIM_INLINE T KERNELSIM_NAME(__, 2##SUFFIX##_rd)(KERNELSIM_SCALAR v) {              \
    return kernelsim::saturate<T>(__builtin_floor(double(kernelsim::value_of(v))));        \
  }
KERNELSIM_TO(short, short)
KERNELSIM_TO(ushort, unsigned short)
KERNELSIM_TO(int, int)
KERNELSIM_TO(uint, unsigned)
KERNELSIM_TO(ll, long long)
KERNELSIM_TO(ull, unsigned long long)
#undef KERNELSIM_TO
KERNELSIM_INLINE unsigned short KERNELSIM_NAME(__, _as_ushort)(KERNELSIM_SCALAR v) { return v.bits; }
KERNELSIM_INLINE short KERNELSIM_NAME(__, _as_short)(KERNELSIM_SCALAR v) { return short(v.bits); }
KERNELSIM_INLINE KERNELSIM_SCALAR KERNELSIM_NAME(__ushort_as_, )(unsigned short bits) { return KERNELSIM_RAW{bits}; }
KERNELSIM_INLINE KERNELSIM_SCALAR KERNELSIM_NAME(__short_as_, )(short bits) { return KERNELSIM_RAW{(unsigned short)bits}; }
KERNELSIM_INLINE float __low2float(KERNELSIM_PAIR v) { return kernelsim::value_of(v.x); }
KERNELSIM_INLINE float __high2float(KERNELSIM_PAIR v) { return kernelsim::value_of(v.y); }
KERNELSIM_INLINE KERNELSIM_SCALAR KERNELSIM_NAME(__low2, )(KERNELSIM_PAIR v) { return v.x; }
KERNELSIM_INLINE KERNELSIM_SCALAR KERNELSIM_NAME(__high2, )(KERNELSIM_PAIR v) { return v.y; }
KERNELSIM_INLINE KERNELSIM_PAIR KERNELSIM_PAIR_NAME(__low2, )(KERNELSIM_PAIR v) { return {v.x, v.x}; }
KERNELSIM_INLINE KERNELSIM_PAIR KERNELSIM_PAIR_NAME(__high2, )(KERNELSIM_PAIR v) { return {v.y, v.y}; }
KERNELSIM_INLINE KERNELSIM_PAIR KERNELSIM_PAIR_NAME(__lows2, )(KERNELSIM_PAIR a, KERNELSIM_PAIR b) { return {a.x, b.x}; }
KERNELSIM_INLINE KERNELSIM_PAIR KERNELSIM_PAIR_NAME(__highs2, )(KERNELSIM_PAIR a, KERNELSIM_PAIR b) { return {a.y, b.y}; }
KERNELSIM_INLINE KERNELSIM_PAIR __lowhigh2highlow(KERNELSIM_PAIR v) { return {v.y, v.x}; }

// --- scalars, and the same on pairs ---
#define KERNELSIM_BINARY(NAME, EXPRESSION)                                                                           \
  KERNELSIM_INLINE KERNELSIM_SCALAR NAME(KERNELSIM_SCALAR a, KERNELSIM_SCALAR b) { return EXPRESSION; }              \
  KERNELSIM_INLINE KERNELSIM_PAIR NAME##2(KERNELSIM_PAIR a, KERNELSIM_PAIR b) { return {NAME(a.x, b.x), NAME(a.y, b.y)}; }
#define KERNELSIM_IN_FLOAT(OPERATOR)                           \
  kernelsim::from_value<KERNELSIM_SCALAR>(                     \
      kernelsim::unfused(kernelsim::value_of(a) OPERATOR kernelsim::value_of(b)))
KERNELSIM_BINARY(__hadd, KERNELSIM_IN_FLOAT(+))
KERNELSIM_BINARY(__hsub, KERNELSIM_IN_FLOAT(-))
KERNELSIM_BINARY(__hmul, KERNELSIM_IN_FLOAT(*))
KERNELSIM_INLINE KERNELSIM_SCALAR __hdiv(KERNELSIM_SCALAR a, KERNELSIM_SCALAR b) { return KERNELSIM_IN_FLOAT(/); }
KERNELSIM_INLINE KERNELSIM_PAIR __h2div(KERNELSIM_PAIR a, KERNELSIM_PAIR b) { return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)}; }
KERNELSIM_BINARY(__hmin, kernelsim::lesser(a, b, false))
KERNELSIM_BINARY(__hmax, kernelsim::greater(a, b, false))
#undef KERNELSIM_BINARY
#undef KERNELSIM_IN_FLOAT
// CUDA puts the 2 of these before the suffix.
#define KERNELSIM_BINARY(NAME, SUFFIX, EXPRESSION)                                                              \
  KERNELSIM_INLINE KERNELSIM_SCALAR NAME##SUFFIX(KERNELSIM_SCALAR a, KERNELSIM_SCALAR b) { return EXPRESSION; } \
  KERNELSIM_INLINE KERNELSIM_PAIR NAME##2##SUFFIX(KERNELSIM_PAIR a, KERNELSIM_PAIR b) {                         \
    return {NAME##SUFFIX(a.x, b.x), NAME##SUFFIX(a.y, b.y)};                                                    \
  }
KERNELSIM_BINARY(__hadd, _rn, __hadd(a, b))
KERNELSIM_BINARY(__hsub, _rn, __hsub(a, b))
KERNELSIM_BINARY(__hmul, _rn, __hmul(a, b))
KERNELSIM_BINARY(__hadd, _sat, kernelsim::to_unit_interval(__hadd(a, b)))
KERNELSIM_BINARY(__hsub, _sat, kernelsim::to_unit_interval(__hsub(a, b)))
KERNELSIM_BINARY(__hmul, _sat, kernelsim::to_unit_interval(__hmul(a, b)))
KERNELSIM_BINARY(__hmin, _nan, kernelsim::lesser(a, b, true))
KERNELSIM_BINARY(__hmax, _nan, kernelsim::greater(a, b, true))
#undef KERNELSIM_BINARY
#define KERNELSIM_TERNARY(SUFFIX, EXPRESSION)                                                                        \
  KERNELSIM_INLINE KERNELSIM_SCALAR __hfma##SUFFIX(KERNELSIM_SCALAR a, KERNELSIM_SCALAR b, KERNELSIM_SCALAR c) {     \
    return EXPRESSION;                                                                                               \
  }                                                                                                                  \
  KERNELSIM_INLINE KERNELSIM_PAIR __hfma2##SUFFIX(KERNELSIM_PAIR a, KERNELSIM_PAIR b, KERNELSIM_PAIR c) {            \
    return {__hfma##SUFFIX(a.x, b.x, c.x), __hfma##SUFFIX(a.y, b.y, c.y)};                                           \
  }
KERNELSIM_TERNARY(, kernelsim::fused(a, b, c))
KERNELSIM_TERNARY(_sat, kernelsim::to_unit_interval(kernelsim::fused(a, b, c)))
KERNELSIM_TERNARY(_relu, kernelsim::not_negative(kernelsim::fused(a, b, c)))
#undef KERNELSIM_TERNARY
KERNELSIM_INLINE KERNELSIM_SCALAR __hneg(KERNELSIM_SCALAR v) { return kernelsim::negated(v); }
KERNELSIM_INLINE KERNELSIM_SCALAR __habs(KERNELSIM_SCALAR v) { return KERNELSIM_RAW{(unsigned short)(v.bits & 0x7fffu)}; }
KERNELSIM_INLINE KERNELSIM_PAIR __hneg2(KERNELSIM_PAIR v) { return {__hneg(v.x), __hneg(v.y)}; }
KERNELSIM_INLINE KERNELSIM_PAIR __habs2(KERNELSIM_PAIR v) { return {__habs(v.x), __habs(v.y)}; }
KERNELSIM_INLINE bool __hisnan(KERNELSIM_SCALAR v) { return kernelsim::value_of(v) != kernelsim::value_of(v); }
KERNELSIM_INLINE int __hisinf(KERNELSIM_SCALAR v) {
  const float value = kernelsim::value_of(v);
  return value == INFINITY ? 1 : value == -INFINITY ? -1 : 0;
}

// --- comparisons: false with a NaN, except those that end in u ---
#define KERNELSIM_COMPARE(NAME, OPERATOR)                                                                            \
  KERNELSIM_INLINE bool __h##NAME(KERNELSIM_SCALAR a, KERNELSIM_SCALAR b) {                                          \
    const float p = kernelsim::value_of(a), q = kernelsim::value_of(b);                                              \
    return p == p && q == q && p OPERATOR q;                                                                         \
  }                                                                                                                  \
  KERNELSIM_INLINE bool __h##NAME##u(KERNELSIM_SCALAR a, KERNELSIM_SCALAR b) {                                       \
    const float p = kernelsim::value_of(a), q = kernelsim::value_of(b);                                              \
    return p != p || q != q || p OPERATOR q;                                                                         \
  }                                                                                                                  \
  KERNELSIM_INLINE KERNELSIM_PAIR __h##NAME##2(KERNELSIM_PAIR a, KERNELSIM_PAIR b) {                                 \
    return {kernelsim::from_value<KERNELSIM_SCALAR>(__h##NAME(a.x, b.x)),                                            \
            kernelsim::from_value<KERNELSIM_SCALAR>(__h##NAME(a.y, b.y))};                                           \
  }                                                                                                                  \
  KERNELSIM_INLINE unsigned __h##NAME##2_mask(KERNELSIM_PAIR a, KERNELSIM_PAIR b) {                                  \
    return (__h##NAME(a.x, b.x) ? 0xffffu : 0u) | (__h##NAME(a.y, b.y) ? 0xffff0000u : 0u);                          \
  }                                                                                                                  \
  KERNELSIM_INLINE bool __hb##NAME##2(KERNELSIM_PAIR a, KERNELSIM_PAIR b) {                                          \
    return __h##NAME(a.x, b.x) && __h##NAME(a.y, b.y);                                                               \
  }
KERNELSIM_COMPARE(eq, ==)
KERNELSIM_COMPARE(ne, !=)
KERNELSIM_COMPARE(lt, <)
KERNELSIM_COMPARE(le, <=)
KERNELSIM_COMPARE(gt, >)
KERNELSIM_COMPARE(ge, >=)
#undef KERNELSIM_COMPARE

// --- functions: computed in double, rounded once ---
#define KERNELSIM_FUNCTION(NAME, EXPRESSION)                                                                \
  KERNELSIM_INLINE KERNELSIM_SCALAR h##NAME(KERNELSIM_SCALAR a) {                                           \
    const double v = kernelsim::value_of(a);                                                                \
    return kernelsim::from_value<KERNELSIM_SCALAR>(EXPRESSION);                                             \
  }                                                                                                         \
  KERNELSIM_INLINE KERNELSIM_PAIR h2##NAME(KERNELSIM_PAIR a) { return {h##NAME(a.x), h##NAME(a.y)}; }
KERNELSIM_FUNCTION(sqrt, __builtin_sqrt(v))
KERNELSIM_FUNCTION(rsqrt, 1.0 / __builtin_sqrt(v))
KERNELSIM_FUNCTION(rcp, 1.0 / v)
KERNELSIM_FUNCTION(exp, __builtin_exp(v))
KERNELSIM_FUNCTION(exp2, __builtin_exp2(v))
KERNELSIM_FUNCTION(exp10, __builtin_pow(10.0, v))
KERNELSIM_FUNCTION(log, __builtin_log(v))
KERNELSIM_FUNCTION(log2, __builtin_log2(v))
KERNELSIM_FUNCTION(log10, __builtin_log10(v))
KERNELSIM_FUNCTION(sin, __builtin_sin(v))
KERNELSIM_FUNCTION(cos, __builtin_cos(v))
KERNELSIM_FUNCTION(tanh, __builtin_tanh(v))
KERNELSIM_FUNCTION(floor, __builtin_floor(v))
KERNELSIM_FUNCTION(ceil, __builtin_ceil(v))
KERNELSIM_FUNCTION(trunc, __builtin_trunc(v))
KERNELSIM_FUNCTION(rint, __builtin_rint(v))
#undef KERNELSIM_FUNCTION

// --- operators ---
#ifdef KERNELSIM_OPERATORS
#define KERNELSIM_OPERATOR(OPERATOR, NAME)                                                                           \
  KERNELSIM_INLINE KERNELSIM_SCALAR operator OPERATOR(const KERNELSIM_SCALAR& a, const KERNELSIM_SCALAR& b) {        \
    return NAME(a, b);                                                                                               \
  }                                                                                                                  \
  KERNELSIM_INLINE KERNELSIM_SCALAR& operator OPERATOR##=(KERNELSIM_SCALAR& a, const KERNELSIM_SCALAR& b) {          \
    return a = NAME(a, b);                                                                                           \
  }
KERNELSIM_OPERATOR(+, __hadd)
KERNELSIM_OPERATOR(-, __hsub)
KERNELSIM_OPERATOR(*, __hmul)
KERNELSIM_OPERATOR(/, __hdiv)
#undef KERNELSIM_OPERATOR
KERNELSIM_INLINE KERNELSIM_SCALAR operator+(const KERNELSIM_SCALAR& v) { return v; }
KERNELSIM_INLINE KERNELSIM_SCALAR operator-(const KERNELSIM_SCALAR& v) { return __hneg(v); }
KERNELSIM_INLINE KERNELSIM_SCALAR& operator++(KERNELSIM_SCALAR& v) { return v = __hadd(v, KERNELSIM_SCALAR(1.0f)); }
KERNELSIM_INLINE KERNELSIM_SCALAR& operator--(KERNELSIM_SCALAR& v) { return v = __hsub(v, KERNELSIM_SCALAR(1.0f)); }
KERNELSIM_INLINE KERNELSIM_SCALAR operator++(KERNELSIM_SCALAR& v, int) {
  const KERNELSIM_SCALAR before = v;
  ++v;
  return before;
}
KERNELSIM_INLINE KERNELSIM_SCALAR operator--(KERNELSIM_SCALAR& v, int) {
  const KERNELSIM_SCALAR before = v;
  --v;
  return before;
}
#define KERNELSIM_OPERATOR(OPERATOR, NAME)                                                              \
  KERNELSIM_INLINE bool operator OPERATOR(const KERNELSIM_SCALAR& a, const KERNELSIM_SCALAR& b) { return NAME(a, b); }
KERNELSIM_OPERATOR(==, __heq)
KERNELSIM_OPERATOR(!=, __hneu)
KERNELSIM_OPERATOR(<, __hlt)
KERNELSIM_OPERATOR(<=, __hle)
KERNELSIM_OPERATOR(>, __hgt)
KERNELSIM_OPERATOR(>=, __hge)
#undef KERNELSIM_OPERATOR
#endif
#ifdef KERNELSIM_PAIR_OPERATORS
#define KERNELSIM_OPERATOR(OPERATOR, NAME)                                                                         \
  KERNELSIM_INLINE KERNELSIM_PAIR operator OPERATOR(const KERNELSIM_PAIR& a, const KERNELSIM_PAIR& b) { return NAME(a, b); } \
  KERNELSIM_INLINE KERNELSIM_PAIR& operator OPERATOR##=(KERNELSIM_PAIR& a, const KERNELSIM_PAIR& b) { return a = NAME(a, b); }
KERNELSIM_OPERATOR(+, __hadd2)
KERNELSIM_OPERATOR(-, __hsub2)
KERNELSIM_OPERATOR(*, __hmul2)
KERNELSIM_OPERATOR(/, __h2div)
#undef KERNELSIM_OPERATOR
KERNELSIM_INLINE KERNELSIM_PAIR operator+(const KERNELSIM_PAIR& v) { return v; }
KERNELSIM_INLINE KERNELSIM_PAIR operator-(const KERNELSIM_PAIR& v) { return __hneg2(v); }
#define KERNELSIM_OPERATOR(OPERATOR, NAME) \
  KERNELSIM_INLINE bool operator OPERATOR(const KERNELSIM_PAIR& a, const KERNELSIM_PAIR& b) { return NAME(a, b); }
KERNELSIM_OPERATOR(==, __hbeq2)
KERNELSIM_OPERATOR(<, __hblt2)
KERNELSIM_OPERATOR(<=, __hble2)
KERNELSIM_OPERATOR(>, __hbgt2)
KERNELSIM_OPERATOR(>=, __hbge2)
#undef KERNELSIM_OPERATOR
KERNELSIM_INLINE bool operator!=(const KERNELSIM_PAIR& a, const KERNELSIM_PAIR& b) {
  return __hneu(a.x, b.x) && __hneu(a.y, b.y);
}
#endif

#undef KERNELSIM_SCALAR
#undef KERNELSIM_PAIR
#undef KERNELSIM_FORMAT
#undef KERNELSIM_DECODE
#undef KERNELSIM_NAME
#undef KERNELSIM_PAIR_NAME
#undef KERNELSIM_RAW
#undef KERNELSIM_RAW_PAIR
#undef KERNELSIM_CONVERSIONS
#undef KERNELSIM_OPERATORS
#undef KERNELSIM_PAIR_OPERATORS
