// The built-in functions for the blocks of a cluster, and the addresses of their shared memory.
#pragma once

#include "runtime_calls.h"

namespace kernelsim {
namespace ptx {

// Shared memory's own addresses count from dynamic shared memory, which is aligned as the whole of a GPU's is. Other
// blocks' have the block's number in the upper bits.
constexpr uint32_t half_window = 1u << 23;
KERNELSIM_INLINE uint32_t shared_address(const void* pointer) {
  const uint64_t offset = reinterpret_cast<uint64_t>(pointer) - reinterpret_cast<uint64_t>(kernelsim_dynamic_shared);
  return offset + half_window < 2 * half_window ? uint32_t(offset) : to_cluster_address(pointer);
}
template <class Address>
KERNELSIM_INLINE uint64_t from_shared(Address address) {
  const uint32_t bits = uint32_t(address);
  if (bits + half_window >= 2 * half_window) return from_cluster_address(bits);
  return reinterpret_cast<uint64_t>(kernelsim_dynamic_shared) + uint64_t(int64_t(int32_t(bits)));
}

}  // namespace ptx
}  // namespace kernelsim

KERNELSIM_INLINE void __cluster_barrier_arrive() { kernelsim::cluster_arrive(true); }
KERNELSIM_INLINE void __cluster_barrier_arrive_relaxed() { kernelsim::cluster_arrive(false); }
KERNELSIM_INLINE void __cluster_barrier_wait() { kernelsim::cluster_wait(); }
KERNELSIM_INLINE void __threadfence_cluster() { kernelsim::fence(); }
KERNELSIM_INLINE unsigned __cluster_query_shared_rank(const void* p) { return kernelsim::cluster_rank_of(p); }
KERNELSIM_INLINE void* __cluster_map_shared_rank(const void* p, unsigned rank) { return kernelsim::cluster_map(p, rank); }
KERNELSIM_INLINE uint2 __cluster_map_shared_multicast(const void* p, unsigned mask) {
  return {kernelsim::ptx::shared_address(p), mask};
}
KERNELSIM_INLINE unsigned __clusterDimIsSpecified() { return kernelsim_cluster.size > 1; }
KERNELSIM_INLINE dim3 __clusterDim() { return kernelsim_cluster.dims; }
KERNELSIM_INLINE dim3 __clusterGridDimInClusters() { return kernelsim_cluster.grid; }
KERNELSIM_INLINE dim3 __clusterIdx() { return kernelsim_cluster.index; }
KERNELSIM_INLINE dim3 __clusterRelativeBlockIdx() { return kernelsim_cluster.block; }
KERNELSIM_INLINE unsigned __clusterRelativeBlockRank() { return kernelsim_cluster.rank; }
KERNELSIM_INLINE unsigned __clusterSizeInBlocks() { return kernelsim_cluster.size; }
