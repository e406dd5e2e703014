// Products of matrices by a warpgroup (wgmma). The layouts of fragments and of tiles are those of the PTX ISA.
#pragma once

#include "matrix.h"

namespace kernelsim {

// One thread's part of d = a * b + d, of 64 x n results: warp i of the four has the rows from 16 i. The accumulators stay
// where the kernel has them, so that its accesses to them are seen.
struct WarpgroupProduct {
  Element a_type, b_type, d_type;  // d: f16 (two in a register), s32 or f32
  uint32_t n;
  bool accumulates;         // else d = a * b
  bool a_is_negated, b_is_negated;
  bool a_is_transposed, b_is_transposed;  // the tile's other dimension is contiguous
  bool a_in_registers;
  uint32_t a[4];
  uint64_t a_tile, b_tile;  // descriptors of tiles in shared memory
  void* d[128];
  uint64_t pc;
};

// runtime/warpgroup.cpp
void warpgroup_multiply(WarpgroupProduct& mine, Site site);
void warpgroup_fence();
void warpgroup_commit();
void warpgroup_wait(uint32_t groups);

template <class T>
KERNELSIM_INLINE void* accumulator(T& variable) {
  static_assert(sizeof(T) == 4, "an accumulator of wgmma is a register of 32 bits");
  return &variable;
}

}  // namespace kernelsim
