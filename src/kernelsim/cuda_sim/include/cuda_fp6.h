// The floating types of 6 bits, and their conversions. Each value has a byte of its own.
#pragma once
#include "kernelsim.h"
#include "kernelsim/small_floats.h"

typedef unsigned char __nv_fp6_storage_t;
typedef unsigned short __nv_fp6x2_storage_t;
typedef unsigned int __nv_fp6x4_storage_t;
enum __nv_fp6_interpretation_t { __NV_E2M3, __NV_E3M2 };

namespace kernelsim {
constexpr SmallFormat fp6_format(__nv_fp6_interpretation_t kind) {
  return kind == __NV_E2M3 ? SmallFormat{2, 3} : SmallFormat{3, 2};
}
}  // namespace kernelsim

KERNELSIM_SMALL_CONVERSIONS(fp6, 8)
KERNELSIM_SMALL_TYPE(fp6, e2m3, __NV_E2M3, 8)
KERNELSIM_SMALL_TYPE(fp6, e3m2, __NV_E3M2, 8)
