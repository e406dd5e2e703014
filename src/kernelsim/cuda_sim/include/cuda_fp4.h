// The floating type of 4 bits, and its conversions. Two values share a byte.
#pragma once
#include "kernelsim.h"
#include "kernelsim/small_floats.h"

typedef unsigned char __nv_fp4_storage_t;
typedef unsigned char __nv_fp4x2_storage_t;
typedef unsigned short __nv_fp4x4_storage_t;
enum __nv_fp4_interpretation_t { __NV_E2M1 };

namespace kernelsim {
constexpr SmallFormat fp4_format(__nv_fp4_interpretation_t) { return {2, 1}; }
}  // namespace kernelsim

KERNELSIM_SMALL_CONVERSIONS(fp4, 4)
KERNELSIM_SMALL_TYPE(fp4, e2m1, __NV_E2M1, 4)
