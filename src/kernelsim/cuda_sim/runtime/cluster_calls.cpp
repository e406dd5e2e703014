// What a thread does with the other blocks of its cluster: their barrier, and addresses in their shared memory.

#include <stdio.h>

#include "checker.h"

namespace kernelsim {

void Worker::cluster_arrive(bool releases, uint64_t pc) {
  if (current_->awaits_cluster) {
    report_cluster(FindingKind::barrier, pc,
                   launch_.is_cooperative() ? "arrives at the grid's barrier again, without having waited for its last arrival"
                                            : "arrives at the cluster's barrier again, without having waited for its last arrival");
  }
  current_->awaits_cluster = true;
  current_->cluster_phase = cluster_.phase();
  VectorClock known;
  if (checker_) {
    releases ? checker_->release_to(known) : checker_->release_fenced_to(known);
  }
  cluster_.arrive({agent(rank()), pc}, known);
}

void Worker::cluster_wait(uint64_t pc) {
  if (!current_->awaits_cluster) {
    report_cluster(FindingKind::barrier, pc,
                   launch_.is_cooperative() ? "waits for the grid's barrier without having arrived at it"
                                            : "waits for the cluster's barrier without having arrived at it");
  }
  current_->awaits_cluster = false;
  await_phase(cluster_meeting(), {cluster_barrier, current_->cluster_phase, false, false, pc});
}

// This block's part of the cluster's barrier: who waits here. Who has arrived, the cluster counts.
Mbarrier& Worker::cluster_meeting() { return mbarriers_.try_emplace(cluster_barrier, Mbarrier{0, 0}).first->second; }

void Worker::cluster_phase_completed(const VectorClock& known) {
  Mbarrier& meeting = cluster_meeting();
  meeting.phase++;
  meeting.completed.join(known);
  wake_waiting(meeting);
}

void Worker::leave_cluster(const Thread& thread) {
  if (checker_ && cluster_.size > 1) checker_->thread_ended();
  cluster_.leave(thread.awaits_cluster && thread.cluster_phase == cluster_.phase());
}

// Threads of this block that reached the kernel's end without the barrier where all others wait. A barrier of the grid
// counts those that returned, too.
void Worker::report_late_in_cluster(const Cluster::Arrival& waiting) {
  unsigned late = 0;
  const Thread* one = nullptr;
  for (size_t w = 0; w < warps_.size(); w++) {
    const unsigned ended = launch_.is_cooperative() ? lanes_of(unsigned(w)) & ~warps_[w].alive : warps_[w].fell_off;
    for (unsigned lanes = ended & ~warps_[w].reported_off; lanes; lanes &= lanes - 1) {
      const Thread& thread = threads_[w * 32 + unsigned(__builtin_ctz(lanes))];
      if (thread.awaits_cluster && thread.cluster_phase == cluster_.phase()) continue;  // it did arrive
      warps_[w].reported_off |= 1u << (thread.rank % 32);
      late++;
      if (!one) one = &thread;
    }
  }
  if (!late) return;
  Finding found{};
  found.kind = uint32_t(FindingKind::barrier);
  found.pc = launch_.relative(waiting.pc);
  found.mask = late;
  describe(cluster_.unit(), waiting.agent, found.block, found.thread);
  describe(one->rank, found.other_block, found.other_thread);
  const char* what = launch_.is_cooperative() ? "ended without this barrier of the grid"
                                              : "reached the end of the kernel without this barrier of the cluster";
  snprintf(found.text, sizeof found.text, "%u thread%s of a block %s", late, late == 1 ? "" : "s", what);
  launch_.report(found);
}

void Worker::set_owner(Finding& found, const Worker& owner) const {
  if (&owner == this) return;
  const uint3 block = launch_.block_index(cluster_.unit(), owner.number_);
  found.owner[0] = block.x, found.owner[1] = block.y, found.owner[2] = block.z;
  found.has_owner = 1;
}

void Worker::report_cluster(FindingKind kind, uint64_t pc, const char* what) {
  Finding found = finding(kind);
  found.pc = launch_.relative(pc);
  snprintf(found.text, sizeof found.text, "%s", what);
  launch_.report(found);
  abandon();
}

void Worker::refuse_in_grid(uint64_t pc) {
  if (!launch_.is_cooperative()) return;
  report_cluster(FindingKind::trap, pc, "a cluster's barrier, in a kernel that also has a barrier of the grid, is not simulated");
}

uint64_t Worker::in_block(uint64_t address, uint32_t rank, uint64_t pc) {
  if (launch_.is_cooperative() && rank == 0) return address;
  if (rank < cluster_.size && !launch_.is_cooperative()) return address - storage_begin() + cluster_.member(rank).storage_begin();
  char text[sizeof(Finding::text)];
  snprintf(text, sizeof text, "the shared memory of block %u of the cluster, which has %u%s", rank,
           kernelsim_cluster.size, kernelsim_cluster.size == 1 ? ": the kernel was launched without a cluster" : "");
  report_cluster(FindingKind::cluster, pc, text);
}

void Worker::declare_cluster(uint32_t x, uint32_t y, uint32_t z) {
  Request& request = launch_.request;
  if (request.cluster[0] == x && request.cluster[1] == y && request.cluster[2] == z) return;
  request.declared_cluster[0] = x, request.declared_cluster[1] = y, request.declared_cluster[2] = z;
  launch_.stop();
  abandon();
}

namespace {

constexpr uint32_t window_bits = 24;  // of an address in shared memory; above them is the block's number, plus one
constexpr uint32_t half_window = 1u << (window_bits - 1);

// Relative to dynamic shared memory; variables may lie before it.
int32_t offset_in_window(uint32_t address) { return int32_t(address << (32 - window_bits)) >> (32 - window_bits); }

uint64_t here() { return reinterpret_cast<uint64_t>(kernelsim_dynamic_shared); }

}  // namespace

void cluster_arrive(bool releases) {
  const auto pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  current_worker()->refuse_in_grid(pc);
  current_worker()->cluster_arrive(releases, pc);
}
void cluster_wait() {
  const auto pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  current_worker()->refuse_in_grid(pc);
  current_worker()->cluster_wait(pc);
}
void grid_arrive() { current_worker()->cluster_arrive(true, reinterpret_cast<uint64_t>(__builtin_return_address(0))); }
void grid_wait() { current_worker()->cluster_wait(reinterpret_cast<uint64_t>(__builtin_return_address(0))); }
void declare_cluster(uint32_t x, uint32_t y, uint32_t z) { current_worker()->declare_cluster(x, y, z); }
void fence_mbarrier_init() {
  if (Checker* checker = running_checker()) checker->fenced_for_cluster();
}

void* cluster_map(const void* pointer, uint32_t rank) {
  return reinterpret_cast<void*>(current_worker()->in_block(reinterpret_cast<uint64_t>(pointer), rank,
                                                            reinterpret_cast<uint64_t>(__builtin_return_address(0))));
}

uint32_t cluster_map_address(uint32_t address, uint32_t rank) {
  const auto pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  current_worker()->in_block(here(), rank, pc);  // whether there is such a block
  return ((rank + 1) << window_bits) + uint32_t(offset_in_window(address));
}

uint64_t from_cluster_address(uint32_t address) {
  const auto pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  const uint32_t rank = ((address + half_window) >> window_bits) - 1;
  return current_worker()->in_block(here(), rank, pc) + uint64_t(int64_t(offset_in_window(address)));
}

uint32_t to_cluster_address(const void* pointer) {
  const Worker& worker = *current_worker();
  const auto address = reinterpret_cast<uint64_t>(pointer);
  const Worker* owner = worker.cluster().owner_of(address);
  if (!owner) return uint32_t(address - here());  // no address in shared memory: whoever uses it finds that
  const uint64_t offset = address - owner->storage_begin() - (here() - worker.storage_begin());
  return (owner == &worker ? 0 : (owner->number() + 1) << window_bits) + uint32_t(offset);
}

uint32_t cluster_rank_of(const void* pointer) {
  const Worker* owner = current_worker()->cluster().owner_of(reinterpret_cast<uint64_t>(pointer));
  const Worker& worker = *current_worker();
  if (worker.launch().is_cooperative()) return 0;
  return owner ? owner->number() : worker.number();
}

}  // namespace kernelsim
