// Products of matrices by a warp (mma.sync, ldmatrix, stmatrix, wmma). The layouts of fragments are those of the PTX ISA.
#pragma once

#include "float16.h"
#include "runtime_calls.h"
#include "warp.h"

namespace kernelsim {

enum class Element : uint32_t { f16, bf16, tf32, s8, u8, f64, e4m3, e5m2, f32, s32 };

// One lane's part of d = a * b + c, as its registers: 16 x 8 results, with k from the number of a's registers.
struct MatrixLane {
  Element a_type, b_type;
  uint32_t a_count;  // registers of a: 1 for m8n8k4, else 2 or 4
  bool half_result;  // c and d are pairs of half
  uint32_t a[4], b[2], c[4], d[4];
};

// runtime/matrix.cpp
void multiply_fragments(void* const* lanes);

KERNELSIM_INLINE void multiply(MatrixLane& mine, Site site) {
  warp_collective(0xffffffffu, &mine, multiply_fragments, site);
}

// Row-wise loads of 8 x 8 matrices of 16 bits. Lanes 8 i to 8 i + 7 have the addresses of the rows of matrix i. `read`
// is the address space's conversion.
template <int Count, bool Transposed>
KERNELSIM_INLINE void load_matrices(const void* row, uint32_t (&out)[Count], Site site) {
  uint64_t rows[32];
  warp_gather(0xffffffffu, reinterpret_cast<uint64_t>(row), rows, site);
  const unsigned lane = lane_id(), group = lane / 4, pair = lane % 4 * 2;
  for (int i = 0; i < Count; i++) {
    if constexpr (Transposed) {
      const auto* first = reinterpret_cast<const uint16_t*>(aligned_row(rows[8 * i + pair])) + group;
      const auto* second = reinterpret_cast<const uint16_t*>(aligned_row(rows[8 * i + pair + 1])) + group;
      const uint32_t low = *first, high = *second;
      out[i] = low | high << 16;
    } else {
      out[i] = *reinterpret_cast<const uint32_t*>(aligned_row(rows[8 * i + group]) + pair * 2);
    }
  }
}

// The reverse: row-wise stores of such matrices.
template <int Count, bool Transposed>
KERNELSIM_INLINE void store_matrices(void* row, const uint32_t (&in)[Count], Site site) {
  uint64_t rows[32];
  warp_gather(0xffffffffu, reinterpret_cast<uint64_t>(row), rows, site);
  const unsigned lane = lane_id(), group = lane / 4, pair = lane % 4 * 2;
  for (int i = 0; i < Count; i++) {
    if constexpr (Transposed) {
      reinterpret_cast<uint16_t*>(aligned_row(rows[8 * i + pair]))[group] = static_cast<uint16_t>(in[i]);
      reinterpret_cast<uint16_t*>(aligned_row(rows[8 * i + pair + 1]))[group] = static_cast<uint16_t>(in[i] >> 16);
    } else {
      *reinterpret_cast<uint32_t*>(aligned_row(rows[8 * i + group]) + pair * 2) = in[i];
    }
  }
}

}  // namespace kernelsim
