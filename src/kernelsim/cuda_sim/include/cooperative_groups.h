// Grids, clusters, thread blocks, tiles of a warp, and coalesced groups. Groups of several grids are refused before compiling.
#pragma once
#include "kernelsim.h"

namespace cooperative_groups {

using kernelsim::Site;
#define KERNELSIM_GROUP_SITE Site site = Site::here()

namespace details {
KERNELSIM_INLINE unsigned block_rank() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
KERNELSIM_INLINE unsigned block_size() { return blockDim.x * blockDim.y * blockDim.z; }
}  // namespace details

class thread_block {
 public:
  KERNELSIM_INLINE static void sync(KERNELSIM_GROUP_SITE) { __syncthreads(site); }
  KERNELSIM_INLINE static unsigned thread_rank() { return details::block_rank(); }
  KERNELSIM_INLINE static unsigned size() { return details::block_size(); }
  KERNELSIM_INLINE static unsigned num_threads() { return details::block_size(); }
  KERNELSIM_INLINE static dim3 group_index() { return blockIdx; }
  KERNELSIM_INLINE static dim3 thread_index() { return threadIdx; }
  KERNELSIM_INLINE static dim3 group_dim() { return blockDim; }
  KERNELSIM_INLINE static dim3 dim_threads() { return blockDim; }
};
KERNELSIM_INLINE thread_block this_thread_block() { return {}; }

class cluster_group {
 public:
  struct arrival_token {};
  KERNELSIM_INLINE static void sync() {
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
  }
  KERNELSIM_INLINE static arrival_token barrier_arrive() {
    __cluster_barrier_arrive();
    return {};
  }
  KERNELSIM_INLINE static void barrier_wait() { __cluster_barrier_wait(); }
  KERNELSIM_INLINE static void barrier_wait(arrival_token&&) { __cluster_barrier_wait(); }
  KERNELSIM_INLINE static unsigned query_shared_rank(const void* address) { return __cluster_query_shared_rank(address); }
  template <class T>
  KERNELSIM_INLINE static T* map_shared_rank(T* address, int rank) {
    return static_cast<T*>(__cluster_map_shared_rank(address, unsigned(rank)));
  }
  KERNELSIM_INLINE static dim3 block_index() { return __clusterRelativeBlockIdx(); }
  KERNELSIM_INLINE static unsigned block_rank() { return __clusterRelativeBlockRank(); }
  KERNELSIM_INLINE static dim3 dim_blocks() { return __clusterDim(); }
  KERNELSIM_INLINE static unsigned num_blocks() { return __clusterSizeInBlocks(); }
  KERNELSIM_INLINE static dim3 thread_index() {
    const dim3 block = block_index();
    return {block.x * blockDim.x + threadIdx.x, block.y * blockDim.y + threadIdx.y, block.z * blockDim.z + threadIdx.z};
  }
  KERNELSIM_INLINE static unsigned thread_rank() { return block_rank() * details::block_size() + details::block_rank(); }
  KERNELSIM_INLINE static dim3 dim_threads() {
    const dim3 blocks = dim_blocks();
    return {blocks.x * blockDim.x, blocks.y * blockDim.y, blocks.z * blockDim.z};
  }
  KERNELSIM_INLINE static unsigned num_threads() { return num_blocks() * details::block_size(); }
  KERNELSIM_INLINE static unsigned size() { return num_threads(); }
};
KERNELSIM_INLINE cluster_group this_cluster() { return {}; }

class grid_group {
 public:
  struct arrival_token {};
  KERNELSIM_INLINE static bool is_valid() { return true; }
  KERNELSIM_INLINE static void sync() {
    kernelsim::grid_arrive();
    kernelsim::grid_wait();
  }
  KERNELSIM_INLINE static arrival_token barrier_arrive() {
    kernelsim::grid_arrive();
    return {};
  }
  KERNELSIM_INLINE static void barrier_wait(arrival_token&&) { kernelsim::grid_wait(); }
  KERNELSIM_INLINE static dim3 block_index() { return blockIdx; }
  KERNELSIM_INLINE static dim3 group_dim() { return gridDim; }
  KERNELSIM_INLINE static dim3 dim_blocks() { return gridDim; }
  KERNELSIM_INLINE static unsigned long long num_blocks() {
    return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z;
  }
  KERNELSIM_INLINE static unsigned long long block_rank() {
    return blockIdx.x + static_cast<unsigned long long>(gridDim.x) * (blockIdx.y + gridDim.y * blockIdx.z);
  }
  KERNELSIM_INLINE static dim3 thread_index() {
    return {blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y * blockDim.y + threadIdx.y,
            blockIdx.z * blockDim.z + threadIdx.z};
  }
  KERNELSIM_INLINE static unsigned long long thread_rank() {
    return block_rank() * details::block_size() + details::block_rank();
  }
  KERNELSIM_INLINE static unsigned long long num_threads() { return num_blocks() * details::block_size(); }
  KERNELSIM_INLINE static unsigned long long size() { return num_threads(); }
};
KERNELSIM_INLINE grid_group this_grid() { return {}; }

// Some lanes of a warp; ranks count them from the lowest. All of CUDA's groups within a warp are this class here.
class warp_group {
 public:
  KERNELSIM_INLINE explicit warp_group(unsigned mask) : mask_(mask) {}
  KERNELSIM_INLINE void sync(KERNELSIM_GROUP_SITE) const { kernelsim::warp_sync(mask_, site); }
  KERNELSIM_INLINE unsigned size() const { return unsigned(__popc(mask_)); }
  KERNELSIM_INLINE unsigned num_threads() const { return size(); }
  KERNELSIM_INLINE unsigned thread_rank() const {
    return unsigned(__popc(mask_ & ((1u << kernelsim::lane_id()) - 1u)));
  }
  KERNELSIM_INLINE unsigned lane_mask() const { return mask_; }

  template <class T>
  KERNELSIM_INLINE T shfl(T value, unsigned rank, KERNELSIM_GROUP_SITE) const {
    return kernelsim::shuffle(mask_, value, lane(rank % size()), site);
  }
  template <class T>
  KERNELSIM_INLINE T shfl_down(T value, unsigned delta, KERNELSIM_GROUP_SITE) const {
    const unsigned rank = thread_rank() + delta;
    return kernelsim::shuffle(mask_, value, rank < size() ? lane(rank) : kernelsim::lane_id(), site);
  }
  template <class T>
  KERNELSIM_INLINE T shfl_up(T value, unsigned delta, KERNELSIM_GROUP_SITE) const {
    const unsigned rank = thread_rank();
    return kernelsim::shuffle(mask_, value, rank >= delta ? lane(rank - delta) : kernelsim::lane_id(), site);
  }
  template <class T>
  KERNELSIM_INLINE T shfl_xor(T value, unsigned bits, KERNELSIM_GROUP_SITE) const {
    const unsigned rank = thread_rank() ^ bits;
    return kernelsim::shuffle(mask_, value, rank < size() ? lane(rank) : kernelsim::lane_id(), site);
  }
  KERNELSIM_INLINE int any(int predicate, KERNELSIM_GROUP_SITE) const { return __any_sync(mask_, predicate, site); }
  KERNELSIM_INLINE int all(int predicate, KERNELSIM_GROUP_SITE) const { return __all_sync(mask_, predicate, site); }
  KERNELSIM_INLINE unsigned ballot(int predicate, KERNELSIM_GROUP_SITE) const {
    return ranks(__ballot_sync(mask_, predicate, site));
  }
  template <class T>
  KERNELSIM_INLINE unsigned match_any(T value, KERNELSIM_GROUP_SITE) const {
    return ranks(__match_any_sync(mask_, value, site));
  }

 private:
  // The lane of a rank: the rank-th set bit of the mask.
  KERNELSIM_INLINE unsigned lane(unsigned rank) const {
    unsigned left = mask_;
    for (; rank > 0; rank--) left &= left - 1u;
    return unsigned(__ffs(int(left))) - 1u;
  }
  // A mask of lanes as a mask of ranks.
  KERNELSIM_INLINE unsigned ranks(unsigned lanes) const {
    unsigned result = 0, rank = 0;
    for (unsigned i = 0; i < 32; i++) {
      if (mask_ >> i & 1u) result |= (lanes >> i & 1u) << rank++;
    }
    return result;
  }
  unsigned mask_;
};

using coalesced_group = warp_group;
KERNELSIM_INLINE coalesced_group coalesced_threads(KERNELSIM_GROUP_SITE) {
  return warp_group(kernelsim::warp_active_mask(site));
}

namespace details {
KERNELSIM_INLINE unsigned tile_mask(unsigned size) {
  const unsigned whole = size == 32 ? 0xffffffffu : (1u << size) - 1u;
  return whole << (kernelsim::lane_id() & ~(size - 1u));
}
}  // namespace details

template <unsigned Size, class Parent = void>
class thread_block_tile : public warp_group {
  static_assert(Size > 0 && Size <= 32 && (Size & (Size - 1)) == 0, "a tile is a power of two of at most 32 threads");

 public:
  KERNELSIM_INLINE thread_block_tile() : warp_group(details::tile_mask(Size)) {}
  template <class Other>  // the type of the group that was partitioned may be left out
  KERNELSIM_INLINE thread_block_tile(const thread_block_tile<Size, Other>&) : thread_block_tile() {}
  KERNELSIM_INLINE static constexpr unsigned size() { return Size; }
  KERNELSIM_INLINE static constexpr unsigned num_threads() { return Size; }
  KERNELSIM_INLINE unsigned thread_rank() const { return kernelsim::lane_id() & (Size - 1u); }
  KERNELSIM_INLINE unsigned meta_group_rank() const { return details::block_rank() / Size; }
  KERNELSIM_INLINE unsigned meta_group_size() const { return (details::block_size() + Size - 1u) / Size; }
};

template <unsigned Size, class Parent>
KERNELSIM_INLINE thread_block_tile<Size, Parent> tiled_partition(const Parent&) {
  return {};
}
// Any of the groups above.
class thread_group {
 public:
  KERNELSIM_INLINE thread_group(const thread_block&) : lanes_(0) {}
  KERNELSIM_INLINE thread_group(const warp_group& group) : lanes_(group.lane_mask()) {}
  KERNELSIM_INLINE void sync(KERNELSIM_GROUP_SITE) const {
    if (lanes_) return warp_group(lanes_).sync(site);
    thread_block::sync(site);
  }
  KERNELSIM_INLINE unsigned size() const { return lanes_ ? warp_group(lanes_).size() : details::block_size(); }
  KERNELSIM_INLINE unsigned num_threads() const { return size(); }
  KERNELSIM_INLINE unsigned thread_rank() const {
    return lanes_ ? warp_group(lanes_).thread_rank() : details::block_rank();
  }

 private:
  unsigned lanes_;  // 0: the block
};
KERNELSIM_INLINE thread_group tiled_partition(const thread_group&, unsigned size) {
  return warp_group(details::tile_mask(size));
}
template <class Group>
KERNELSIM_INLINE void sync(const Group& group, KERNELSIM_GROUP_SITE) {
  group.sync(site);
}
KERNELSIM_INLINE void sync(const cluster_group& group) { group.sync(); }
KERNELSIM_INLINE void sync(const grid_group& group) { group.sync(); }

template <class T>
struct plus {
  KERNELSIM_INLINE T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct less {
  KERNELSIM_INLINE T operator()(T a, T b) const { return b < a ? b : a; }
};
template <class T>
struct greater {
  KERNELSIM_INLINE T operator()(T a, T b) const { return a < b ? b : a; }
};
template <class T>
struct bit_and {
  KERNELSIM_INLINE T operator()(T a, T b) const { return a & b; }
};
template <class T>
struct bit_or {
  KERNELSIM_INLINE T operator()(T a, T b) const { return a | b; }
};
template <class T>
struct bit_xor {
  KERNELSIM_INLINE T operator()(T a, T b) const { return a ^ b; }
};

namespace details {
// A butterfly as in the GPU's reduction, so that floating sums round alike; odd groups are summed in the order of ranks.
template <class Group, class T, class Operation>
KERNELSIM_INLINE T reduce(const Group& group, T value, Operation operation, Site site) {
  const unsigned size = group.size();
  if ((size & (size - 1u)) == 0) {
    for (unsigned bits = size / 2; bits > 0; bits /= 2) value = operation(value, group.shfl_xor(value, bits, site));
    return value;
  }
  return kernelsim::reduce_lanes(group.lane_mask(), value, operation, site);
}
template <class Group, class T, class Operation>
KERNELSIM_INLINE T inclusive_scan(const Group& group, T value, Operation operation, Site site) {
  const unsigned rank = group.thread_rank();
  for (unsigned delta = 1; delta < group.size(); delta *= 2) {
    const T other = group.shfl_up(value, delta, site);
    if (rank >= delta) value = operation(other, value);
  }
  return value;
}
}  // namespace details

template <class Group, class T, class Operation>
KERNELSIM_INLINE T reduce(const Group& group, T value, Operation operation, KERNELSIM_GROUP_SITE) {
  return details::reduce(group, value, operation, site);
}
template <class Group, class T, class Operation = plus<T>>
KERNELSIM_INLINE T inclusive_scan(const Group& group, T value, Operation operation = {}, KERNELSIM_GROUP_SITE) {
  return details::inclusive_scan(group, value, operation, site);
}
template <class Group, class T, class Operation = plus<T>>
KERNELSIM_INLINE T exclusive_scan(const Group& group, T value, Operation operation = {}, KERNELSIM_GROUP_SITE) {
  const T before = group.shfl_up(details::inclusive_scan(group, value, operation, site), 1, site);
  return group.thread_rank() == 0 ? T{} : before;
}

#undef KERNELSIM_GROUP_SITE
}  // namespace cooperative_groups
