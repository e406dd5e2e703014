// A copy that a group's threads share: pieces of 16 bytes, or the largest size that addresses and length allow.
#pragma once

#include "runtime_calls.h"

namespace kernelsim {

template <class Group>
KERNELSIM_INLINE void group_copy(const Group& group, void* to, const void* from, size_t bytes) {
  const uint64_t together = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) | bytes | 16u;
  const size_t piece = together & (~together + 1u);
  for (size_t at = group.thread_rank() * piece; at < bytes; at += group.size() * piece) {
    copy_async(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, unsigned(piece), unsigned(piece));
  }
}

}  // namespace kernelsim
