// A tensor map in the simulator: what cuTensorMapEncodeTiled takes, in the 128 bytes that a kernel gets (tensor_map.py
// writes it). A GPU's has another encoding, which is not documented.
#pragma once

#include <stdint.h>

#include "../include/kernelsim/runtime_calls.h"

namespace kernelsim {

constexpr uint64_t tensor_map_mark = 0x70616d726f736e74;  // "tnsormap"

struct TensorMap {
  uint64_t mark, address;
  uint32_t rank, element_bytes;
  uint32_t swizzle_bytes;  // 0, 32, 64 or 128
  uint32_t sizes[5], box[5];  // in elements, the innermost dimension first
  Number type;                // of an element, for reductions
  uint64_t strides[5];        // in bytes

  uint32_t row_bytes() const { return box[0] * element_bytes; }
  uint32_t box_bytes() const {
    uint32_t bytes = row_bytes();
    for (uint32_t i = 1; i < rank; i++) bytes *= box[i];
    return bytes;
  }
};
static_assert(sizeof(TensorMap) <= 128, "CUtensorMap has 128 bytes");

// Where the 16 bytes at an address are in a swizzled tile: the index of a 16-byte piece within its span is combined with
// the index of the 128 bytes that it is in.
inline uint64_t swizzled(uint64_t address, uint32_t span) {
  return span ? address ^ (address >> 3 & (span - 16)) : address;
}

}  // namespace kernelsim
