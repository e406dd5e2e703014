// The functions of include/kernelsim/runtime_calls.h, which kernels call.

#include <stdio.h>

#include "checker.h"

namespace kernelsim {

unsigned block_barrier(BarrierKind kind, bool predicate, Site site) {
  return current_worker()->barrier(kind, predicate, site);
}

void warp_sync(unsigned mask, Site site) {
  Worker& worker = *current_worker();
  worker.warp_operation(Operation::sync, mask, site);
  worker.wait_in_warp();
}

unsigned warp_ballot(unsigned mask, bool predicate, Site site) {
  Worker& worker = *current_worker();
  worker.warp_operation(Operation::ballot, mask, site).predicate = predicate;
  return worker.wait_in_warp();
}

uint64_t warp_shuffle(unsigned mask, uint64_t value, unsigned source, Site site) {
  Worker& worker = *current_worker();
  Wait& wait = worker.warp_operation(Operation::shuffle, mask, site);
  wait.wide = value;
  wait.source = source;
  worker.wait_in_warp();
  return wait.wide;
}

void warp_shuffle_wide(unsigned mask, const void* value, void* result, unsigned size, unsigned source, Site site) {
  Worker& worker = *current_worker();
  Wait& wait = worker.warp_operation(Operation::wide_shuffle, mask, site);
  wait.value = value;
  wait.result = result;
  wait.size = size;
  wait.source = source;
  worker.wait_in_warp();
}

unsigned warp_gather(unsigned mask, uint64_t value, uint64_t* values, Site site) {
  Worker& worker = *current_worker();
  Wait& wait = worker.warp_operation(Operation::gather, mask, site);
  wait.wide = value;
  wait.gathered = values;
  return worker.wait_in_warp();
}

void warp_collective(unsigned mask, void* value, void (*compute)(void* const*), Site site) {
  Worker& worker = *current_worker();
  Wait& wait = worker.warp_operation(Operation::collective, mask, site);
  wait.value = value;
  wait.compute = compute;
  worker.wait_in_warp();
}

void copy_async(void* to, const void* from, unsigned size, unsigned from_size) {
  current_worker()->copy_async(static_cast<char*>(to), static_cast<const char*>(from), size, from_size,
                               reinterpret_cast<uint64_t>(__builtin_return_address(0)));
}
void commit_copies() { current_worker()->commit_copies(); }
void wait_for_copies(unsigned groups) { current_worker()->wait_for_copies(groups, false); }
void wait_for_all_copies() { current_worker()->wait_for_copies(0, true); }

void mbarrier_init(uint64_t address, uint32_t count) {
  current_worker()->mbarrier_init(address, count, reinterpret_cast<uint64_t>(__builtin_return_address(0)));
}
void mbarrier_inval(uint64_t address) {
  current_worker()->mbarrier_inval(address, reinterpret_cast<uint64_t>(__builtin_return_address(0)));
}
uint64_t mbarrier_arrive(uint64_t address, uint32_t count, uint32_t expected_bytes, bool releases) {
  return current_worker()->mbarrier_arrive(address, {count, expected_bytes, releases, false},
                                           reinterpret_cast<uint64_t>(__builtin_return_address(0)));
}
void mbarrier_arrive_and_drop(uint64_t address, uint32_t count) {
  current_worker()->mbarrier_arrive(address, {count, 0, true, true},
                                    reinterpret_cast<uint64_t>(__builtin_return_address(0)));
}
void mbarrier_expect_bytes(uint64_t address, int64_t bytes) {
  current_worker()->mbarrier_transaction(address, bytes, reinterpret_cast<uint64_t>(__builtin_return_address(0)));
}
bool mbarrier_wait(uint64_t address, uint64_t phase, PhaseIs how, bool may_time_out) {
  return current_worker()->mbarrier_wait({address, how == PhaseIs::token ? phase >> 32 : phase, how == PhaseIs::parity,
                                          may_time_out, reinterpret_cast<uint64_t>(__builtin_return_address(0))});
}
void bulk_load(void* to, const void* from, uint32_t size, uint64_t mbarrier) {
  current_worker()->bulk_load({static_cast<char*>(to), static_cast<const char*>(from), size, 16}, mbarrier,
                              reinterpret_cast<uint64_t>(__builtin_return_address(0)));
}
void bulk_store(void* to, const void* from, uint32_t size, Combine operation, Number type) {
  current_worker()->bulk_store({static_cast<char*>(to), static_cast<const char*>(from), size, 16}, {operation, type},
                               reinterpret_cast<uint64_t>(__builtin_return_address(0)));
}
void commit_bulk_stores() {
  if (Checker* checker = running_checker()) checker->commit_bulk_stores();
}
void wait_for_bulk_stores(uint32_t groups, bool only_reads) {
  if (Checker* checker = running_checker()) checker->wait_for_bulk_stores(groups, only_reads);
}
void tensor_load(void* to, const void* map, const BoxAt& box, uint64_t mbarrier, uint32_t blocks) {
  current_worker()->tensor_load(static_cast<char*>(to), map, box, mbarrier, blocks,
                                reinterpret_cast<uint64_t>(__builtin_return_address(0)));
}
void tensor_store(const void* map, const BoxAt& box, const void* from, Combine how) {
  current_worker()->tensor_store(map, box, static_cast<const char*>(from), how,
                                 reinterpret_cast<uint64_t>(__builtin_return_address(0)));
}
void read_only_load(const void* address, unsigned size) {
  const auto pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  if (Checker* checker = running_checker()) checker->read_only_load(reinterpret_cast<uint64_t>(address), size, pc);
}
void fence_proxy() {
  if (Checker* checker = running_checker()) checker->fence_proxy();
}
void mbarrier_copy(void* to, const void* from, uint32_t size, uint64_t mbarrier) {
  Worker& worker = *current_worker();
  const auto pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  worker.mbarrier_transaction(mbarrier, size, pc);
  worker.bulk_load({static_cast<char*>(to), static_cast<const char*>(from), size, 1}, mbarrier, pc);
}

unsigned warp_active_mask(Site site) { return current_worker()->active_mask(site); }
uint32_t lane_id() { return current_worker()->rank() % 32; }
void yield_to_others() { current_worker()->yield(reinterpret_cast<uint64_t>(__builtin_return_address(0))); }
void returned_early() { current_worker()->returned_early(); }

void result_unused() {
  if (Checker* checker = running_checker()) checker->result_unused();
}

void fence(bool acquires, bool releases) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (Checker* checker = running_checker()) checker->fenced(acquires, releases);
}

long long ticks() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

void assertion_failed(const char* condition, Site site) {
  Worker& worker = *current_worker();
  Finding found = worker.finding(FindingKind::assertion);
  found.file = site.file;
  found.line = site.line;
  snprintf(found.text, sizeof found.text, "%s", condition);
  worker.launch().report(found);
  worker.abandon();
}

void trapped(Site site) {
  Worker& worker = *current_worker();
  Finding found = worker.finding(FindingKind::trap);
  found.file = site.file;
  found.line = site.line;
  worker.launch().report(found);
  worker.abandon();
}


void exceeded_launch_bounds(unsigned most, Site site) {
  Worker& worker = *current_worker();
  Finding found = worker.finding(FindingKind::launch_bounds);
  found.file = site.file;
  found.line = site.line;
  found.value = most;
  worker.launch().report(found);
  worker.launch().stop();
  worker.abandon();
}

}  // namespace kernelsim
