// One 16-bit floating type and its pair, with CUDA's functions on them. float16.h includes this file once for half
// and once for bfloat16 (hence no include guard). Macros set which of the two it is.

struct OPWRIGHT_RAW {
  unsigned short x;
};
struct alignas(4) OPWRIGHT_RAW_PAIR {
  unsigned short x, y;
};

struct alignas(2) OPWRIGHT_SCALAR {
  unsigned short bits;

  OPWRIGHT_SCALAR() = default;  // indeterminate, as on the GPU: it may be in shared memory
  OPWRIGHT_INLINE constexpr OPWRIGHT_SCALAR(const OPWRIGHT_RAW& raw) : bits(raw.x) {}
  OPWRIGHT_INLINE OPWRIGHT_SCALAR(float v) : bits(opwright_sim::encode<OPWRIGHT_FORMAT>(v)) {}
  OPWRIGHT_INLINE OPWRIGHT_SCALAR(double v) : bits(opwright_sim::encode<OPWRIGHT_FORMAT>(v)) {}
  OPWRIGHT_INLINE constexpr operator OPWRIGHT_RAW() const { return {bits}; }
  OPWRIGHT_INLINE operator float() const { return OPWRIGHT_DECODE(bits); }
#ifdef OPWRIGHT_CONVERSIONS
#define OPWRIGHT_CONVERT(T)                                                                         \
  OPWRIGHT_INLINE OPWRIGHT_SCALAR(T v) : bits(opwright_sim::encode<OPWRIGHT_FORMAT>(double(v))) {} \
  OPWRIGHT_INLINE operator T() const { return opwright_sim::saturate<T>(__builtin_truncf(OPWRIGHT_DECODE(bits))); } \
  OPWRIGHT_INLINE OPWRIGHT_SCALAR& operator=(T v) { return *this = OPWRIGHT_SCALAR(v); }
  OPWRIGHT_CONVERT(short)
  OPWRIGHT_CONVERT(unsigned short)
  OPWRIGHT_CONVERT(int)
  OPWRIGHT_CONVERT(unsigned)
  OPWRIGHT_CONVERT(long)
  OPWRIGHT_CONVERT(unsigned long)
  OPWRIGHT_CONVERT(long long)
  OPWRIGHT_CONVERT(unsigned long long)
#undef OPWRIGHT_CONVERT
  OPWRIGHT_INLINE OPWRIGHT_SCALAR& operator=(float v) { return *this = OPWRIGHT_SCALAR(v); }
  OPWRIGHT_INLINE OPWRIGHT_SCALAR& operator=(double v) { return *this = OPWRIGHT_SCALAR(v); }
  OPWRIGHT_INLINE operator bool() const { return (bits & 0x7fffu) != 0; }
#endif
};

struct alignas(4) OPWRIGHT_PAIR {
  OPWRIGHT_SCALAR x, y;

  OPWRIGHT_PAIR() = default;
  OPWRIGHT_INLINE constexpr OPWRIGHT_PAIR(const OPWRIGHT_SCALAR& x, const OPWRIGHT_SCALAR& y) : x(x), y(y) {}
  OPWRIGHT_INLINE OPWRIGHT_PAIR(const OPWRIGHT_RAW_PAIR& raw) : x(OPWRIGHT_RAW{raw.x}), y(OPWRIGHT_RAW{raw.y}) {}
  OPWRIGHT_INLINE operator OPWRIGHT_RAW_PAIR() const { return {x.bits, y.bits}; }
};

namespace opwright_sim {

template <>
OPWRIGHT_INLINE OPWRIGHT_SCALAR from_value<OPWRIGHT_SCALAR>(double value, Rounding rounding) {
  return OPWRIGHT_RAW{encode<OPWRIGHT_FORMAT>(value, rounding)};
}
OPWRIGHT_INLINE float value_of(OPWRIGHT_SCALAR v) { return OPWRIGHT_DECODE(v.bits); }
OPWRIGHT_INLINE OPWRIGHT_SCALAR sum(OPWRIGHT_SCALAR a, OPWRIGHT_SCALAR b) {
  return from_value<OPWRIGHT_SCALAR>(unfused(value_of(a) + value_of(b)));
}
OPWRIGHT_INLINE OPWRIGHT_SCALAR fused(OPWRIGHT_SCALAR a, OPWRIGHT_SCALAR b, OPWRIGHT_SCALAR c) {
  return OPWRIGHT_RAW{encode_fma<OPWRIGHT_FORMAT>(value_of(a), value_of(b), value_of(c))};
}
OPWRIGHT_INLINE OPWRIGHT_SCALAR to_unit_interval(OPWRIGHT_SCALAR v) {  // NaN gives 0
  const float value = value_of(v);
  return value >= 1.0f ? from_value<OPWRIGHT_SCALAR>(1.0) : value > 0.0f ? v : from_value<OPWRIGHT_SCALAR>(0.0);
}
OPWRIGHT_INLINE OPWRIGHT_SCALAR not_negative(OPWRIGHT_SCALAR v) {
  const float value = value_of(v);
  return value != value ? from_value<OPWRIGHT_SCALAR>(NAN) : value > 0.0f ? v : from_value<OPWRIGHT_SCALAR>(0.0);
}
// -0 is less than +0 here; a NaN loses, or wins on request.
OPWRIGHT_INLINE OPWRIGHT_SCALAR lesser(OPWRIGHT_SCALAR a, OPWRIGHT_SCALAR b, bool nan_wins) {
  const float p = value_of(a), q = value_of(b);
  if (p != p || q != q) {
    if (nan_wins || (p != p && q != q)) return from_value<OPWRIGHT_SCALAR>(NAN);
    return p != p ? b : a;
  }
  if (p == q) return a.bits & 0x8000u ? a : b;
  return p < q ? a : b;
}
OPWRIGHT_INLINE OPWRIGHT_SCALAR negated(OPWRIGHT_SCALAR v) { return OPWRIGHT_RAW{(unsigned short)(v.bits ^ 0x8000u)}; }
OPWRIGHT_INLINE OPWRIGHT_SCALAR greater(OPWRIGHT_SCALAR a, OPWRIGHT_SCALAR b, bool nan_wins) {
  const float p = value_of(a), q = value_of(b);
  if (p != p || q != q) return lesser(a, b, nan_wins);
  if (p == q) return a.bits & 0x8000u ? b : a;
  return p < q ? b : a;
}

}  // namespace opwright_sim

// --- conversions ---
#define OPWRIGHT_ROUNDINGS(SUFFIX, ROUNDING)                                                                       \
  OPWRIGHT_INLINE OPWRIGHT_SCALAR OPWRIGHT_NAME(__float2, SUFFIX)(float v) {                                       \
    return opwright_sim::from_value<OPWRIGHT_SCALAR>(v, opwright_sim::Rounding::ROUNDING);                         \
  }                                                                                                                \
  OPWRIGHT_INLINE OPWRIGHT_SCALAR OPWRIGHT_NAME(__int2, SUFFIX)(int v) {                                           \
    return opwright_sim::from_value<OPWRIGHT_SCALAR>(v, opwright_sim::Rounding::ROUNDING);                         \
  }                                                                                                                \
  OPWRIGHT_INLINE OPWRIGHT_SCALAR OPWRIGHT_NAME(__uint2, SUFFIX)(unsigned v) {                                     \
    return opwright_sim::from_value<OPWRIGHT_SCALAR>(v, opwright_sim::Rounding::ROUNDING);                         \
  }                                                                                                                \
  OPWRIGHT_INLINE OPWRIGHT_SCALAR OPWRIGHT_NAME(__short2, SUFFIX)(short v) {                                       \
    return opwright_sim::from_value<OPWRIGHT_SCALAR>(v, opwright_sim::Rounding::ROUNDING);                         \
  }                                                                                                                \
  OPWRIGHT_INLINE OPWRIGHT_SCALAR OPWRIGHT_NAME(__ushort2, SUFFIX)(unsigned short v) {                             \
    return opwright_sim::from_value<OPWRIGHT_SCALAR>(v, opwright_sim::Rounding::ROUNDING);                         \
  }
OPWRIGHT_ROUNDINGS(_rn, nearest)
OPWRIGHT_ROUNDINGS(_rz, zero)
OPWRIGHT_ROUNDINGS(_ru, up)
OPWRIGHT_ROUNDINGS(_rd, down)
#undef OPWRIGHT_ROUNDINGS
OPWRIGHT_INLINE float OPWRIGHT_NAME(__, 2float)(OPWRIGHT_SCALAR v) { return opwright_sim::value_of(v); }
#define OPWRIGHT_TO(SUFFIX, T)                                                             \
  OPWRIGHT_INLINE T OPWRIGHT_NAME(__, 2##SUFFIX##_rn)(OPWRIGHT_SCALAR v) {                 \
    return opwright_sim::saturate<T>(__builtin_rint(double(opwright_sim::value_of(v))));   \
  }                                                                                        \
  OPWRIGHT_INLINE T OPWRIGHT_NAME(__, 2##SUFFIX##_rz)(OPWRIGHT_SCALAR v) {                 \
    return opwright_sim::saturate<T>(__builtin_trunc(double(opwright_sim::value_of(v))));  \
  }                                                                                        \
  OPWRIGHT_INLINE T OPWRIGHT_NAME(__, 2##SUFFIX##_ru)(OPWRIGHT_SCALAR v) {                 \
    return opwright_sim::saturate<T>(__builtin_ceil(double(opwright_sim::value_of(v))));   \
  }                                                                                        \
  OPWRIGHT_INLINE T OPWRIGHT_NAME(__, 2##SUFFIX##_rd)(OPWRIGHT_SCALAR v) {                 \
    return opwright_sim::saturate<T>(__builtin_floor(double(opwright_sim::value_of(v))));  \
  }
OPWRIGHT_TO(short, short)
OPWRIGHT_TO(ushort, unsigned short)
OPWRIGHT_TO(int, int)
OPWRIGHT_TO(uint, unsigned)
OPWRIGHT_TO(ll, long long)
OPWRIGHT_TO(ull, unsigned long long)
#undef OPWRIGHT_TO
OPWRIGHT_INLINE unsigned short OPWRIGHT_NAME(__, _as_ushort)(OPWRIGHT_SCALAR v) { return v.bits; }
OPWRIGHT_INLINE short OPWRIGHT_NAME(__, _as_short)(OPWRIGHT_SCALAR v) { return short(v.bits); }
OPWRIGHT_INLINE OPWRIGHT_SCALAR OPWRIGHT_NAME(__ushort_as_, )(unsigned short bits) { return OPWRIGHT_RAW{bits}; }
OPWRIGHT_INLINE OPWRIGHT_SCALAR OPWRIGHT_NAME(__short_as_, )(short bits) { return OPWRIGHT_RAW{(unsigned short)bits}; }
OPWRIGHT_INLINE float __low2float(OPWRIGHT_PAIR v) { return opwright_sim::value_of(v.x); }
OPWRIGHT_INLINE float __high2float(OPWRIGHT_PAIR v) { return opwright_sim::value_of(v.y); }
OPWRIGHT_INLINE OPWRIGHT_SCALAR OPWRIGHT_NAME(__low2, )(OPWRIGHT_PAIR v) { return v.x; }
OPWRIGHT_INLINE OPWRIGHT_SCALAR OPWRIGHT_NAME(__high2, )(OPWRIGHT_PAIR v) { return v.y; }
OPWRIGHT_INLINE OPWRIGHT_PAIR OPWRIGHT_PAIR_NAME(__low2, )(OPWRIGHT_PAIR v) { return {v.x, v.x}; }
OPWRIGHT_INLINE OPWRIGHT_PAIR OPWRIGHT_PAIR_NAME(__high2, )(OPWRIGHT_PAIR v) { return {v.y, v.y}; }
OPWRIGHT_INLINE OPWRIGHT_PAIR OPWRIGHT_PAIR_NAME(__lows2, )(OPWRIGHT_PAIR a, OPWRIGHT_PAIR b) { return {a.x, b.x}; }
OPWRIGHT_INLINE OPWRIGHT_PAIR OPWRIGHT_PAIR_NAME(__highs2, )(OPWRIGHT_PAIR a, OPWRIGHT_PAIR b) { return {a.y, b.y}; }
OPWRIGHT_INLINE OPWRIGHT_PAIR __lowhigh2highlow(OPWRIGHT_PAIR v) { return {v.y, v.x}; }

// --- scalars, and the same on pairs ---
#define OPWRIGHT_BINARY(NAME, EXPRESSION)                                                                            \
  OPWRIGHT_INLINE OPWRIGHT_SCALAR NAME(OPWRIGHT_SCALAR a, OPWRIGHT_SCALAR b) { return EXPRESSION; }                  \
  OPWRIGHT_INLINE OPWRIGHT_PAIR NAME##2(OPWRIGHT_PAIR a, OPWRIGHT_PAIR b) { return {NAME(a.x, b.x), NAME(a.y, b.y)}; }
#define OPWRIGHT_IN_FLOAT(OPERATOR)                            \
  opwright_sim::from_value<OPWRIGHT_SCALAR>(                   \
      opwright_sim::unfused(opwright_sim::value_of(a) OPERATOR opwright_sim::value_of(b)))
OPWRIGHT_BINARY(__hadd, OPWRIGHT_IN_FLOAT(+))
OPWRIGHT_BINARY(__hsub, OPWRIGHT_IN_FLOAT(-))
OPWRIGHT_BINARY(__hmul, OPWRIGHT_IN_FLOAT(*))
OPWRIGHT_INLINE OPWRIGHT_SCALAR __hdiv(OPWRIGHT_SCALAR a, OPWRIGHT_SCALAR b) { return OPWRIGHT_IN_FLOAT(/); }
OPWRIGHT_INLINE OPWRIGHT_PAIR __h2div(OPWRIGHT_PAIR a, OPWRIGHT_PAIR b) { return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)}; }
OPWRIGHT_BINARY(__hmin, opwright_sim::lesser(a, b, false))
OPWRIGHT_BINARY(__hmax, opwright_sim::greater(a, b, false))
#undef OPWRIGHT_BINARY
#undef OPWRIGHT_IN_FLOAT
// CUDA puts the 2 of these before the suffix.
#define OPWRIGHT_BINARY(NAME, SUFFIX, EXPRESSION)                                                               \
  OPWRIGHT_INLINE OPWRIGHT_SCALAR NAME##SUFFIX(OPWRIGHT_SCALAR a, OPWRIGHT_SCALAR b) { return EXPRESSION; }     \
  OPWRIGHT_INLINE OPWRIGHT_PAIR NAME##2##SUFFIX(OPWRIGHT_PAIR a, OPWRIGHT_PAIR b) {                             \
    return {NAME##SUFFIX(a.x, b.x), NAME##SUFFIX(a.y, b.y)};                                                    \
  }
OPWRIGHT_BINARY(__hadd, _rn, __hadd(a, b))
OPWRIGHT_BINARY(__hsub, _rn, __hsub(a, b))
OPWRIGHT_BINARY(__hmul, _rn, __hmul(a, b))
OPWRIGHT_BINARY(__hadd, _sat, opwright_sim::to_unit_interval(__hadd(a, b)))
OPWRIGHT_BINARY(__hsub, _sat, opwright_sim::to_unit_interval(__hsub(a, b)))
OPWRIGHT_BINARY(__hmul, _sat, opwright_sim::to_unit_interval(__hmul(a, b)))
OPWRIGHT_BINARY(__hmin, _nan, opwright_sim::lesser(a, b, true))
OPWRIGHT_BINARY(__hmax, _nan, opwright_sim::greater(a, b, true))
#undef OPWRIGHT_BINARY
#define OPWRIGHT_TERNARY(SUFFIX, EXPRESSION)                                                                         \
  OPWRIGHT_INLINE OPWRIGHT_SCALAR __hfma##SUFFIX(OPWRIGHT_SCALAR a, OPWRIGHT_SCALAR b, OPWRIGHT_SCALAR c) {          \
    return EXPRESSION;                                                                                               \
  }                                                                                                                  \
  OPWRIGHT_INLINE OPWRIGHT_PAIR __hfma2##SUFFIX(OPWRIGHT_PAIR a, OPWRIGHT_PAIR b, OPWRIGHT_PAIR c) {                 \
    return {__hfma##SUFFIX(a.x, b.x, c.x), __hfma##SUFFIX(a.y, b.y, c.y)};                                           \
  }
OPWRIGHT_TERNARY(, opwright_sim::fused(a, b, c))
OPWRIGHT_TERNARY(_sat, opwright_sim::to_unit_interval(opwright_sim::fused(a, b, c)))
OPWRIGHT_TERNARY(_relu, opwright_sim::not_negative(opwright_sim::fused(a, b, c)))
#undef OPWRIGHT_TERNARY
OPWRIGHT_INLINE OPWRIGHT_SCALAR __hneg(OPWRIGHT_SCALAR v) { return opwright_sim::negated(v); }
OPWRIGHT_INLINE OPWRIGHT_SCALAR __habs(OPWRIGHT_SCALAR v) { return OPWRIGHT_RAW{(unsigned short)(v.bits & 0x7fffu)}; }
OPWRIGHT_INLINE OPWRIGHT_PAIR __hneg2(OPWRIGHT_PAIR v) { return {__hneg(v.x), __hneg(v.y)}; }
OPWRIGHT_INLINE OPWRIGHT_PAIR __habs2(OPWRIGHT_PAIR v) { return {__habs(v.x), __habs(v.y)}; }
OPWRIGHT_INLINE bool __hisnan(OPWRIGHT_SCALAR v) { return opwright_sim::value_of(v) != opwright_sim::value_of(v); }
OPWRIGHT_INLINE int __hisinf(OPWRIGHT_SCALAR v) {
  const float value = opwright_sim::value_of(v);
  return value == INFINITY ? 1 : value == -INFINITY ? -1 : 0;
}

// --- comparisons: false with a NaN, except those that end in u ---
#define OPWRIGHT_COMPARE(NAME, OPERATOR)                                                                             \
  OPWRIGHT_INLINE bool __h##NAME(OPWRIGHT_SCALAR a, OPWRIGHT_SCALAR b) {                                             \
    const float p = opwright_sim::value_of(a), q = opwright_sim::value_of(b);                                        \
    return p == p && q == q && p OPERATOR q;                                                                         \
  }                                                                                                                  \
  OPWRIGHT_INLINE bool __h##NAME##u(OPWRIGHT_SCALAR a, OPWRIGHT_SCALAR b) {                                          \
    const float p = opwright_sim::value_of(a), q = opwright_sim::value_of(b);                                        \
    return p != p || q != q || p OPERATOR q;                                                                         \
  }                                                                                                                  \
  OPWRIGHT_INLINE OPWRIGHT_PAIR __h##NAME##2(OPWRIGHT_PAIR a, OPWRIGHT_PAIR b) {                                     \
    return {opwright_sim::from_value<OPWRIGHT_SCALAR>(__h##NAME(a.x, b.x)),                                          \
            opwright_sim::from_value<OPWRIGHT_SCALAR>(__h##NAME(a.y, b.y))};                                         \
  }                                                                                                                  \
  OPWRIGHT_INLINE unsigned __h##NAME##2_mask(OPWRIGHT_PAIR a, OPWRIGHT_PAIR b) {                                     \
    return (__h##NAME(a.x, b.x) ? 0xffffu : 0u) | (__h##NAME(a.y, b.y) ? 0xffff0000u : 0u);                          \
  }                                                                                                                  \
  OPWRIGHT_INLINE bool __hb##NAME##2(OPWRIGHT_PAIR a, OPWRIGHT_PAIR b) {                                             \
    return __h##NAME(a.x, b.x) && __h##NAME(a.y, b.y);                                                               \
  }
OPWRIGHT_COMPARE(eq, ==)
OPWRIGHT_COMPARE(ne, !=)
OPWRIGHT_COMPARE(lt, <)
OPWRIGHT_COMPARE(le, <=)
OPWRIGHT_COMPARE(gt, >)
OPWRIGHT_COMPARE(ge, >=)
#undef OPWRIGHT_COMPARE

// --- functions: computed in double, rounded once ---
#define OPWRIGHT_FUNCTION(NAME, EXPRESSION)                                                                 \
  OPWRIGHT_INLINE OPWRIGHT_SCALAR h##NAME(OPWRIGHT_SCALAR a) {                                              \
    const double v = opwright_sim::value_of(a);                                                             \
    return opwright_sim::from_value<OPWRIGHT_SCALAR>(EXPRESSION);                                           \
  }                                                                                                         \
  OPWRIGHT_INLINE OPWRIGHT_PAIR h2##NAME(OPWRIGHT_PAIR a) { return {h##NAME(a.x), h##NAME(a.y)}; }
OPWRIGHT_FUNCTION(sqrt, __builtin_sqrt(v))
OPWRIGHT_FUNCTION(rsqrt, 1.0 / __builtin_sqrt(v))
OPWRIGHT_FUNCTION(rcp, 1.0 / v)
OPWRIGHT_FUNCTION(exp, __builtin_exp(v))
OPWRIGHT_FUNCTION(exp2, __builtin_exp2(v))
OPWRIGHT_FUNCTION(exp10, __builtin_pow(10.0, v))
OPWRIGHT_FUNCTION(log, __builtin_log(v))
OPWRIGHT_FUNCTION(log2, __builtin_log2(v))
OPWRIGHT_FUNCTION(log10, __builtin_log10(v))
OPWRIGHT_FUNCTION(sin, __builtin_sin(v))
OPWRIGHT_FUNCTION(cos, __builtin_cos(v))
OPWRIGHT_FUNCTION(tanh, __builtin_tanh(v))
OPWRIGHT_FUNCTION(floor, __builtin_floor(v))
OPWRIGHT_FUNCTION(ceil, __builtin_ceil(v))
OPWRIGHT_FUNCTION(trunc, __builtin_trunc(v))
OPWRIGHT_FUNCTION(rint, __builtin_rint(v))
#undef OPWRIGHT_FUNCTION

// --- operators ---
#ifdef OPWRIGHT_OPERATORS
#define OPWRIGHT_OPERATOR(OPERATOR, NAME)                                                                            \
  OPWRIGHT_INLINE OPWRIGHT_SCALAR operator OPERATOR(const OPWRIGHT_SCALAR& a, const OPWRIGHT_SCALAR& b) {            \
    return NAME(a, b);                                                                                               \
  }                                                                                                                  \
  OPWRIGHT_INLINE OPWRIGHT_SCALAR& operator OPERATOR##=(OPWRIGHT_SCALAR& a, const OPWRIGHT_SCALAR& b) {              \
    return a = NAME(a, b);                                                                                           \
  }
OPWRIGHT_OPERATOR(+, __hadd)
OPWRIGHT_OPERATOR(-, __hsub)
OPWRIGHT_OPERATOR(*, __hmul)
OPWRIGHT_OPERATOR(/, __hdiv)
#undef OPWRIGHT_OPERATOR
OPWRIGHT_INLINE OPWRIGHT_SCALAR operator+(const OPWRIGHT_SCALAR& v) { return v; }
OPWRIGHT_INLINE OPWRIGHT_SCALAR operator-(const OPWRIGHT_SCALAR& v) { return __hneg(v); }
OPWRIGHT_INLINE OPWRIGHT_SCALAR& operator++(OPWRIGHT_SCALAR& v) { return v = __hadd(v, OPWRIGHT_SCALAR(1.0f)); }
OPWRIGHT_INLINE OPWRIGHT_SCALAR& operator--(OPWRIGHT_SCALAR& v) { return v = __hsub(v, OPWRIGHT_SCALAR(1.0f)); }
OPWRIGHT_INLINE OPWRIGHT_SCALAR operator++(OPWRIGHT_SCALAR& v, int) {
  const OPWRIGHT_SCALAR before = v;
  ++v;
  return before;
}
OPWRIGHT_INLINE OPWRIGHT_SCALAR operator--(OPWRIGHT_SCALAR& v, int) {
  const OPWRIGHT_SCALAR before = v;
  --v;
  return before;
}
#define OPWRIGHT_OPERATOR(OPERATOR, NAME)                                                               \
  OPWRIGHT_INLINE bool operator OPERATOR(const OPWRIGHT_SCALAR& a, const OPWRIGHT_SCALAR& b) { return NAME(a, b); }
OPWRIGHT_OPERATOR(==, __heq)
OPWRIGHT_OPERATOR(!=, __hneu)
OPWRIGHT_OPERATOR(<, __hlt)
OPWRIGHT_OPERATOR(<=, __hle)
OPWRIGHT_OPERATOR(>, __hgt)
OPWRIGHT_OPERATOR(>=, __hge)
#undef OPWRIGHT_OPERATOR
#endif
#ifdef OPWRIGHT_PAIR_OPERATORS
#define OPWRIGHT_OPERATOR(OPERATOR, NAME)                                                                          \
  OPWRIGHT_INLINE OPWRIGHT_PAIR operator OPERATOR(const OPWRIGHT_PAIR& a, const OPWRIGHT_PAIR& b) { return NAME(a, b); } \
  OPWRIGHT_INLINE OPWRIGHT_PAIR& operator OPERATOR##=(OPWRIGHT_PAIR& a, const OPWRIGHT_PAIR& b) { return a = NAME(a, b); }
OPWRIGHT_OPERATOR(+, __hadd2)
OPWRIGHT_OPERATOR(-, __hsub2)
OPWRIGHT_OPERATOR(*, __hmul2)
OPWRIGHT_OPERATOR(/, __h2div)
#undef OPWRIGHT_OPERATOR
OPWRIGHT_INLINE OPWRIGHT_PAIR operator+(const OPWRIGHT_PAIR& v) { return v; }
OPWRIGHT_INLINE OPWRIGHT_PAIR operator-(const OPWRIGHT_PAIR& v) { return __hneg2(v); }
#define OPWRIGHT_OPERATOR(OPERATOR, NAME) \
  OPWRIGHT_INLINE bool operator OPERATOR(const OPWRIGHT_PAIR& a, const OPWRIGHT_PAIR& b) { return NAME(a, b); }
OPWRIGHT_OPERATOR(==, __hbeq2)
OPWRIGHT_OPERATOR(<, __hblt2)
OPWRIGHT_OPERATOR(<=, __hble2)
OPWRIGHT_OPERATOR(>, __hbgt2)
OPWRIGHT_OPERATOR(>=, __hbge2)
#undef OPWRIGHT_OPERATOR
OPWRIGHT_INLINE bool operator!=(const OPWRIGHT_PAIR& a, const OPWRIGHT_PAIR& b) {
  return __hneu(a.x, b.x) && __hneu(a.y, b.y);
}
#endif

#undef OPWRIGHT_SCALAR
#undef OPWRIGHT_PAIR
#undef OPWRIGHT_FORMAT
#undef OPWRIGHT_DECODE
#undef OPWRIGHT_NAME
#undef OPWRIGHT_PAIR_NAME
#undef OPWRIGHT_RAW
#undef OPWRIGHT_RAW_PAIR
#undef OPWRIGHT_CONVERSIONS
#undef OPWRIGHT_OPERATORS
#undef OPWRIGHT_PAIR_OPERATORS
