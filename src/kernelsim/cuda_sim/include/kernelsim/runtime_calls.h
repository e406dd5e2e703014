// The functions of the runtime (runtime/*.cpp) that kernels call, and the built-in variables, which the runtime sets.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "vector_types.h"

// Declared const here, although the runtime changes them between threads: within one thread they do not change, and
// reading a const variable costs a checked build nothing. That is so of types without a constructor only, which dim3 is not.
#ifdef KERNELSIM_RUNTIME
#define KERNELSIM_CONST
#else
#define KERNELSIM_CONST const
#endif
#define KERNELSIM_BUILTIN extern "C" KERNELSIM_CONST __thread __attribute__((visibility("hidden"), tls_model("local-dynamic")))
KERNELSIM_BUILTIN uint3 threadIdx;
KERNELSIM_BUILTIN uint3 blockIdx;
KERNELSIM_BUILTIN uint3 blockDim;
KERNELSIM_BUILTIN uint3 gridDim;
namespace kernelsim {
// The running block's cluster: its blocks, the grid in clusters, and the place of the block and of the cluster.
struct ClusterPlace {
  dim3 dims, grid;
  uint3 index{}, block{};
  unsigned rank = 0, size = 1;
};
}  // namespace kernelsim
KERNELSIM_BUILTIN kernelsim::ClusterPlace kernelsim_cluster;
#undef KERNELSIM_CONST
#undef KERNELSIM_BUILTIN
static constexpr int warpSize = 32;

namespace kernelsim {

// 227 KiB, the most that a block may have on any device (compute capability 9.0); a launch states how much it uses.
constexpr unsigned most_shared_bytes = 227 * 1024;
extern "C" __thread
    __attribute__((visibility("hidden"), tls_model("local-dynamic"))) char kernelsim_dynamic_shared[most_shared_bytes];

// The replacement of `extern __shared__ T name[];` within a function: a reference to an array of unknown bound.
template <class Array>
KERNELSIM_INLINE Array& dynamic_shared() {
  return *reinterpret_cast<Array*>(kernelsim_dynamic_shared);
}

// Where in the kernel's source a call was made. As a default argument, `Site::here()` is the caller's line.
struct Site {
  const char* file;
  uint32_t line;
  static constexpr Site here(const char* file = __builtin_FILE(), uint32_t line = __builtin_LINE()) {
    return {file, line};
  }
};

enum class BarrierKind : uint32_t { plain, count, all, any };
enum class AtomicKind : uint32_t { read_modify_write, read, write };
// What an atomic access orders, as bits of the runtime's Access. `unstated`: by CUDA's own functions, which count as
// relaxed for releases, and as acquires, as published kernels rely on.
enum class Order : uint32_t { unstated = 0, relaxed = 16, acquire = 16 + 32, release = 16 + 64, acq_rel = 16 + 32 + 64 };

// Each returns when all threads that it waits for have arrived.
unsigned block_barrier(BarrierKind kind, bool predicate, Site site);
void warp_sync(unsigned mask, Site site);
unsigned warp_ballot(unsigned mask, bool predicate, Site site);
unsigned warp_active_mask(Site site);
// The value of the lane `source`; the own one if there is no such lane in the segment.
uint64_t warp_shuffle(unsigned mask, uint64_t value, unsigned source, Site site);
// The same of any size: `result` gets the bytes at `value`.
void warp_shuffle_wide(unsigned mask, const void* value, void* result, unsigned size, unsigned source, Site site);
// `values` gets the 32 lanes' values; the returned mask has those that took part.
unsigned warp_gather(unsigned mask, uint64_t value, uint64_t* values, Site site);

// `compute` gets the addresses of the lanes' values once all have come, null for lanes that are not in the mask.
void warp_collective(unsigned mask, void* value, void (*compute)(void* const* lanes), Site site);

// Asynchronous copies of the running thread: `to` has its values after a wait. Bytes beyond `from_size` become zero.
// They belong to the group that the next commit closes; a wait leaves the last `groups` of these.
void copy_async(void* to, const void* from, unsigned size, unsigned from_size);
void commit_copies();
void wait_for_copies(unsigned groups);
void wait_for_all_copies();
// Barriers in shared memory, of PTX's mbarrier instructions, by their address. An arrival expects the bytes of bulk copies
// besides, and gives a token of its phase. A wait is for the end of a token's phase, or of the one with a parity; it is
// false if it timed out.
enum class PhaseIs : uint32_t { token, parity };
void mbarrier_init(uint64_t address, uint32_t count);
void mbarrier_inval(uint64_t address);
uint64_t mbarrier_arrive(uint64_t address, uint32_t count, uint32_t expected_bytes, bool releases);
void mbarrier_arrive_and_drop(uint64_t address, uint32_t count);
void mbarrier_expect_bytes(uint64_t address, int64_t bytes);
bool mbarrier_wait(uint64_t address, uint64_t phase, PhaseIs how, bool may_time_out);
// A copy into shared memory, in units of 16 bytes, whose bytes complete on an mbarrier.
void bulk_load(void* to, const void* from, uint32_t size, uint64_t mbarrier);
// How a copy's elements are combined with those that are there.
enum class Combine : uint32_t { replace, add, min, max, inc, dec, bit_and, bit_or, bit_xor };
enum class Number : uint32_t { u32, s32, u64, s64, f16, bf16, f32, f64, other };
// A copy to global memory. It belongs to the group of bulk copies that the thread commits next.
void bulk_store(void* to, const void* from, uint32_t size, Combine how = Combine::replace, Number type = Number::u32);
// Copies into shared memory of the cluster: from the block's own, from registers, and to several blocks at once, with a
// bit for each. They complete on an mbarrier beside their target.
void bulk_send(void* to, const void* from, uint32_t size, uint64_t mbarrier, Combine how = Combine::replace,
               Number type = Number::u32);
void store_async(void* to, const void* value, uint32_t size, uint64_t mbarrier, Combine how = Combine::replace,
                 Number type = Number::u32);
void bulk_multicast(void* to, const void* from, uint32_t size, uint64_t mbarrier, uint32_t blocks);
void commit_bulk_stores();
void wait_for_bulk_stores(uint32_t groups, bool only_reads);
// The same for the box of a tensor map at coordinates, the innermost first.
struct BoxAt {
  uint32_t rank;
  int32_t coordinates[5];
};
// To several blocks, with a bit for each; 0: to the block in whose shared memory the addresses are.
void tensor_load(void* to, const void* map, const BoxAt& box, uint64_t mbarrier, uint32_t blocks = 0);
void tensor_store(const void* map, const BoxAt& box, const void* from, Combine how = Combine::replace);
// Before a load that need not see what the same launch has written.
void read_only_load(const void* address, unsigned size);
void fence_proxy();
// One of any size, whose bytes are expected with it.
void mbarrier_copy(void* to, const void* from, uint32_t size, uint64_t mbarrier);
// PTX's barriers of a block, by number: of some threads, or of all (0). A thread may arrive without waiting.
void named_barrier(uint32_t number, uint32_t threads, bool waits, Site site);
// The barrier of a cluster. An arrival that releases nothing makes visible what came before a fence only.
void cluster_arrive(bool releases);
void cluster_wait();
// The barrier of the grid. A kernel that calls these is launched with all of its blocks at once.
void grid_arrive();
void grid_wait();
void fence_mbarrier_init();
// The same place in the shared memory of another block of the cluster; and that as an address in shared memory. Those of
// other blocks have the block's number in their upper bits.
void* cluster_map(const void* pointer, uint32_t rank);
uint32_t cluster_map_address(uint32_t address, uint32_t rank);
uint64_t from_cluster_address(uint32_t address);
uint32_t to_cluster_address(const void* pointer);
uint32_t cluster_rank_of(const void* pointer);
// The first statement of a kernel with __cluster_dims__.
void declare_cluster(uint32_t x, uint32_t y = 1, uint32_t z = 1);
// The address of a row that ldmatrix reads or stmatrix writes, which has to be a multiple of 16.
char* aligned_row(uint64_t address);
// A finding if the address is no multiple; `what` names it.
void check_alignment(const void* address, unsigned multiple, const char* what);

// A thread that may be waiting for another one lets it run.
void yield_to_others();
void fence(bool acquires = true, bool releases = true);
long long ticks();
[[noreturn]] void assertion_failed(const char* condition, Site site);
[[noreturn]] void trapped(Site site);
[[noreturn]] void exceeded_launch_bounds(unsigned most, Site site);

// Called before every atomic access. Checked builds check it here; the operation itself is not instrumented.
void note_atomic(const volatile void* address, unsigned size, AtomicKind kind, Order order = Order::unstated);
// Called after one whose result is not used: its thread does not know what others did before.
void result_unused();
uint32_t lane_id();
// The first statement of a kernel with __launch_bounds__: a GPU refuses to launch larger blocks.
template <class... Others>
KERNELSIM_INLINE void launch_bounds(Site site, unsigned most, Others...) {
  if (blockDim.x * blockDim.y * blockDim.z > most) exceeded_launch_bounds(most, site);
}

// The replacement of `return;` in a checked build: such a thread need not reach later barriers.
void returned_early();

}  // namespace kernelsim
