// float4 and its like, with CUDA's alignments, and make_float4 and its like.
#pragma once

#include "language.h"

#define KERNELSIM_VECTOR(NAME, T, ALIGN2, ALIGN4)                                                      \
  struct NAME##1 {                                                                                     \
    T x;                                                                                               \
  };                                                                                                   \
  struct alignas(ALIGN2) NAME##2 {                                                                     \
    T x, y;                                                                                            \
  };                                                                                                   \
  struct NAME##3 {                                                                                     \
    T x, y, z;                                                                                         \
  };                                                                                                   \
  struct alignas(ALIGN4) NAME##4 {                                                                     \
    T x, y, z, w;                                                                                      \
  };                                                                                                   \
  KERNELSIM_INLINE constexpr NAME##1 make_##NAME##1(T x) { return {x}; }                               \
  KERNELSIM_INLINE constexpr NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                       \
  KERNELSIM_INLINE constexpr NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }               \
  KERNELSIM_INLINE constexpr NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

KERNELSIM_VECTOR(char, signed char, 2, 4)
KERNELSIM_VECTOR(uchar, unsigned char, 2, 4)
KERNELSIM_VECTOR(short, short, 4, 8)
KERNELSIM_VECTOR(ushort, unsigned short, 4, 8)
KERNELSIM_VECTOR(int, int, 8, 16)
KERNELSIM_VECTOR(uint, unsigned int, 8, 16)
KERNELSIM_VECTOR(long, long, 16, 16)
KERNELSIM_VECTOR(ulong, unsigned long, 16, 16)
KERNELSIM_VECTOR(longlong, long long, 16, 16)
KERNELSIM_VECTOR(ulonglong, unsigned long long, 16, 16)
KERNELSIM_VECTOR(float, float, 8, 16)
KERNELSIM_VECTOR(double, double, 16, 16)
#undef KERNELSIM_VECTOR

// Of four elements of 8 bytes there are those of CUDA 13 too, whose names say the alignment.
#define KERNELSIM_ALIGNED_VECTOR(NAME, T, ALIGN)                                                         \
  struct alignas(ALIGN) NAME##4_##ALIGN##a {                                                             \
    T x, y, z, w;                                                                                        \
  };                                                                                                     \
  KERNELSIM_INLINE constexpr NAME##4_##ALIGN##a make_##NAME##4_##ALIGN##a(T x, T y, T z, T w) {          \
    return {x, y, z, w};                                                                                 \
  }
#define KERNELSIM_ALIGNED_VECTORS(NAME, T) \
  KERNELSIM_ALIGNED_VECTOR(NAME, T, 16)   \
  KERNELSIM_ALIGNED_VECTOR(NAME, T, 32)
KERNELSIM_ALIGNED_VECTORS(long, long)
KERNELSIM_ALIGNED_VECTORS(ulong, unsigned long)
KERNELSIM_ALIGNED_VECTORS(longlong, long long)
KERNELSIM_ALIGNED_VECTORS(ulonglong, unsigned long long)
KERNELSIM_ALIGNED_VECTORS(double, double)
#undef KERNELSIM_ALIGNED_VECTORS
#undef KERNELSIM_ALIGNED_VECTOR

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
