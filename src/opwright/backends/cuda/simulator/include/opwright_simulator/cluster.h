// The built-in functions for the blocks of a cluster, and the addresses of their shared memory.
#pragma once

#include "runtime_calls.h"

namespace opwright_sim {
namespace ptx {

// Shared memory's own addresses count from dynamic shared memory, which is aligned as the whole of a GPU's is. Other
// blocks' have the block's number in the upper bits.
constexpr uint32_t half_window = 1u << 23;
OPWRIGHT_INLINE uint32_t shared_address(const void* pointer) {
  const uint64_t offset = reinterpret_cast<uint64_t>(pointer) - reinterpret_cast<uint64_t>(opwright_dynamic_shared);
  return offset + half_window < 2 * half_window ? uint32_t(offset) : to_cluster_address(pointer);
}
template <class Address>
OPWRIGHT_INLINE uint64_t from_shared(Address address) {
  const uint32_t bits = uint32_t(address);
  if (bits + half_window >= 2 * half_window) return from_cluster_address(bits);
  return reinterpret_cast<uint64_t>(opwright_dynamic_shared) + uint64_t(int64_t(int32_t(bits)));
}

}  // namespace ptx
}  // namespace opwright_sim

OPWRIGHT_INLINE void __cluster_barrier_arrive() { opwright_sim::cluster_arrive(true); }
OPWRIGHT_INLINE void __cluster_barrier_arrive_relaxed() { opwright_sim::cluster_arrive(false); }
OPWRIGHT_INLINE void __cluster_barrier_wait() { opwright_sim::cluster_wait(); }
OPWRIGHT_INLINE void __threadfence_cluster() { opwright_sim::fence(); }
OPWRIGHT_INLINE unsigned __cluster_query_shared_rank(const void* p) { return opwright_sim::cluster_rank_of(p); }
OPWRIGHT_INLINE void* __cluster_map_shared_rank(const void* p, unsigned rank) { return opwright_sim::cluster_map(p, rank); }
OPWRIGHT_INLINE uint2 __cluster_map_shared_multicast(const void* p, unsigned mask) {
  return {opwright_sim::ptx::shared_address(p), mask};
}
OPWRIGHT_INLINE unsigned __clusterDimIsSpecified() { return opwright_cluster.size > 1; }
OPWRIGHT_INLINE dim3 __clusterDim() { return opwright_cluster.dims; }
OPWRIGHT_INLINE dim3 __clusterGridDimInClusters() { return opwright_cluster.grid; }
OPWRIGHT_INLINE dim3 __clusterIdx() { return opwright_cluster.index; }
OPWRIGHT_INLINE dim3 __clusterRelativeBlockIdx() { return opwright_cluster.block; }
OPWRIGHT_INLINE unsigned __clusterRelativeBlockRank() { return opwright_cluster.rank; }
OPWRIGHT_INLINE unsigned __clusterSizeInBlocks() { return opwright_cluster.size; }
