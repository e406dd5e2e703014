// Barriers, shuffles, votes. The last parameter of each is the caller's line, by default.
#pragma once

#include "runtime_calls.h"

#define KERNELSIM_SITE kernelsim::Site site = kernelsim::Site::here()

KERNELSIM_INLINE void __syncthreads(KERNELSIM_SITE) {
  kernelsim::block_barrier(kernelsim::BarrierKind::plain, false, site);
}
KERNELSIM_INLINE int __syncthreads_count(int predicate, KERNELSIM_SITE) {
  return int(kernelsim::block_barrier(kernelsim::BarrierKind::count, predicate != 0, site));
}
KERNELSIM_INLINE int __syncthreads_and(int predicate, KERNELSIM_SITE) {
  return int(kernelsim::block_barrier(kernelsim::BarrierKind::all, predicate != 0, site));
}
KERNELSIM_INLINE int __syncthreads_or(int predicate, KERNELSIM_SITE) {
  return int(kernelsim::block_barrier(kernelsim::BarrierKind::any, predicate != 0, site));
}
KERNELSIM_INLINE void __syncwarp(unsigned mask = 0xffffffffu, KERNELSIM_SITE) { kernelsim::warp_sync(mask, site); }

KERNELSIM_INLINE unsigned __ballot_sync(unsigned mask, int predicate, KERNELSIM_SITE) {
  return kernelsim::warp_ballot(mask, predicate != 0, site);
}
KERNELSIM_INLINE int __any_sync(unsigned mask, int predicate, KERNELSIM_SITE) {
  return kernelsim::warp_ballot(mask, predicate != 0, site) != 0;
}
KERNELSIM_INLINE int __all_sync(unsigned mask, int predicate, KERNELSIM_SITE) {
  return kernelsim::warp_ballot(mask, predicate == 0, site) == 0;
}
KERNELSIM_INLINE unsigned __activemask(KERNELSIM_SITE) { return kernelsim::warp_active_mask(site); }

namespace kernelsim {

template <class T>
KERNELSIM_INLINE uint64_t widened(T value) {
  static_assert(sizeof(T) <= 8, "at most 64 bits");
  uint64_t wide = 0;
  __builtin_memcpy(&wide, &value, sizeof(T));
  return wide;
}

template <class T>
KERNELSIM_INLINE T shuffle(unsigned mask, T value, unsigned source, Site site) {
  static_assert(std::is_trivially_copyable<T>::value, "a shuffle copies bytes");
  T result;
  if constexpr (sizeof(T) <= 8) {  // in registers
    const uint64_t wide = warp_shuffle(mask, widened(value), source, site);
    __builtin_memcpy(&result, &wide, sizeof(T));
  } else {
    warp_shuffle_wide(mask, &value, &result, sizeof(T), source, site);
  }
  return result;
}

// The lane that each kind of shuffle reads from; the own lane if that would be outside of the segment of `width` lanes.
KERNELSIM_INLINE unsigned segment(unsigned lane, int width) { return lane & ~(unsigned(width) - 1u); }
KERNELSIM_INLINE unsigned indexed(unsigned lane, int source, int width) {
  return segment(lane, width) | (unsigned(source) & (unsigned(width) - 1u));
}
KERNELSIM_INLINE unsigned up(unsigned lane, unsigned delta, int width) {
  return lane - segment(lane, width) >= delta ? lane - delta : lane;
}
KERNELSIM_INLINE unsigned down(unsigned lane, unsigned delta, int width) {
  return lane - segment(lane, width) + delta < unsigned(width) ? lane + delta : lane;
}
// An xor may read an earlier segment, never a later one.
KERNELSIM_INLINE unsigned butterfly(unsigned lane, int bits, int width) {
  const unsigned source = lane ^ unsigned(bits);
  return source < segment(lane, width) + unsigned(width) ? source : lane;
}

template <class T>
KERNELSIM_INLINE unsigned match(unsigned mask, T value, Site site) {
  uint64_t values[32];
  const uint64_t mine = widened(value);
  const unsigned present = warp_gather(mask, mine, values, site);
  unsigned same = 0;
  for (unsigned lane = 0; lane < 32; lane++) same |= unsigned((present >> lane & 1u) && values[lane] == mine) << lane;
  return same;
}

template <class T, class Operation>
KERNELSIM_INLINE T reduce_lanes(unsigned mask, T value, Operation operation, Site site) {
  uint64_t values[32];
  const unsigned present = warp_gather(mask, widened(value), values, site);
  T result{};
  bool first = true;
  for (unsigned lane = 0; lane < 32; lane++) {
    if (!(present >> lane & 1u)) continue;
    T other;
    __builtin_memcpy(&other, &values[lane], sizeof(T));
    result = first ? other : operation(result, other);
    first = false;
  }
  return result;
}

}  // namespace kernelsim

template <class T>
KERNELSIM_INLINE T __shfl_sync(unsigned mask, T value, int source, int width = 32, KERNELSIM_SITE) {
  return kernelsim::shuffle(mask, value, kernelsim::indexed(kernelsim::lane_id(), source, width), site);
}
template <class T>
KERNELSIM_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, KERNELSIM_SITE) {
  return kernelsim::shuffle(mask, value, kernelsim::up(kernelsim::lane_id(), delta, width), site);
}
template <class T>
KERNELSIM_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, KERNELSIM_SITE) {
  return kernelsim::shuffle(mask, value, kernelsim::down(kernelsim::lane_id(), delta, width), site);
}
template <class T>
KERNELSIM_INLINE T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, KERNELSIM_SITE) {
  return kernelsim::shuffle(mask, value, kernelsim::butterfly(kernelsim::lane_id(), bits, width), site);
}

template <class T>
KERNELSIM_INLINE unsigned __match_any_sync(unsigned mask, T value, KERNELSIM_SITE) {
  return kernelsim::match(mask, value, site);
}
template <class T>
KERNELSIM_INLINE unsigned __match_all_sync(unsigned mask, T value, int* all, KERNELSIM_SITE) {
  uint64_t values[32];
  const uint64_t mine = kernelsim::widened(value);
  const unsigned present = kernelsim::warp_gather(mask, mine, values, site);
  bool same = true;
  for (unsigned lane = 0; lane < 32; lane++) same = same && (!(present >> lane & 1u) || values[lane] == mine);
  *all = same;
  return same ? present : 0u;
}

#define KERNELSIM_REDUCE(NAME, T, EXPRESSION)                                                       \
  KERNELSIM_INLINE T NAME(unsigned mask, T value, KERNELSIM_SITE) {                                 \
    return kernelsim::reduce_lanes(mask, value, [](T a, T b) { return T(EXPRESSION); }, site);      \
  }
KERNELSIM_REDUCE(__reduce_add_sync, unsigned, a + b)
KERNELSIM_REDUCE(__reduce_add_sync, int, unsigned(a) + unsigned(b))
KERNELSIM_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
KERNELSIM_REDUCE(__reduce_min_sync, int, a < b ? a : b)
KERNELSIM_REDUCE(__reduce_max_sync, unsigned, a < b ? b : a)
KERNELSIM_REDUCE(__reduce_max_sync, int, a < b ? b : a)
KERNELSIM_REDUCE(__reduce_and_sync, unsigned, a & b)
KERNELSIM_REDUCE(__reduce_or_sync, unsigned, a | b)
KERNELSIM_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef KERNELSIM_REDUCE
