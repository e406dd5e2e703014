// Complex numbers as vectors of two: <cuComplex.h>.
#pragma once

#include "kernelsim/language.h"
#include "kernelsim/vector_types.h"

typedef float2 cuFloatComplex;
typedef double2 cuDoubleComplex;
typedef cuFloatComplex cuComplex;

namespace kernelsim {

// x / y by the larger part of y's, so that no square overflows.
template <class C>
KERNELSIM_INLINE C complex_quotient(C x, C y) {
  using T = decltype(x.x);
  const T scale = T(1) / ((y.x < 0 ? -y.x : y.x) + (y.y < 0 ? -y.y : y.y));
  const T a = x.x * scale, b = x.y * scale, c = y.x * scale, d = y.y * scale;
  const T norm = T(1) / (c * c + d * d);
  return C{(a * c + b * d) * norm, (b * c - a * d) * norm};
}

}  // namespace kernelsim

#define KERNELSIM_COMPLEX(C, T, f)                                                                       \
  KERNELSIM_INLINE T cuCreal##f(C x) { return x.x; }                                                     \
  KERNELSIM_INLINE T cuCimag##f(C x) { return x.y; }                                                     \
  KERNELSIM_INLINE C cuConj##f(C x) { return C{x.x, -x.y}; }                                             \
  KERNELSIM_INLINE C cuCadd##f(C x, C y) { return C{x.x + y.x, x.y + y.y}; }                             \
  KERNELSIM_INLINE C cuCsub##f(C x, C y) { return C{x.x - y.x, x.y - y.y}; }                             \
  KERNELSIM_INLINE C cuCmul##f(C x, C y) { return C{x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x}; }     \
  KERNELSIM_INLINE C cuCdiv##f(C x, C y) { return kernelsim::complex_quotient(x, y); }                   \
  KERNELSIM_INLINE T cuCabs##f(C x) { return T(::hypot(x.x, x.y)); }                                     \
  KERNELSIM_INLINE C cuCfma##f(C x, C y, C d) {                                                          \
    return C{x.x * y.x + d.x - x.y * y.y, x.x * y.y + d.y + x.y * y.x};                                  \
  }
KERNELSIM_COMPLEX(cuFloatComplex, float, f)
KERNELSIM_COMPLEX(cuDoubleComplex, double, )
#undef KERNELSIM_COMPLEX

KERNELSIM_INLINE cuFloatComplex make_cuFloatComplex(float x, float y) { return cuFloatComplex{x, y}; }
KERNELSIM_INLINE cuDoubleComplex make_cuDoubleComplex(double x, double y) { return cuDoubleComplex{x, y}; }
KERNELSIM_INLINE cuComplex make_cuComplex(float x, float y) { return cuComplex{x, y}; }
KERNELSIM_INLINE cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex x) {
  return cuFloatComplex{float(x.x), float(x.y)};
}
KERNELSIM_INLINE cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex x) { return cuDoubleComplex{x.x, x.y}; }
