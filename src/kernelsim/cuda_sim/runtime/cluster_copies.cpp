// Copies from a block's shared memory or a thread's registers into the shared memory of a block of the cluster, and from
// global memory to several blocks at once. They complete on an mbarrier there.

#include "checker.h"

namespace kernelsim {

void Worker::bulk_send(const Bulk& bulk, const Combination& how, uint64_t mbarrier, uint64_t pc) {
  if (bulk.size == 0) return;
  if (checker_) {
    checker_->check_units(bulk, pc);
    checker_->bulk_store_reads(bulk.from, bulk.size, pc);
  }
  send({bulk.to, std::vector<char>(bulk.from, bulk.from + bulk.size), agent(rank()), true, pc, how}, mbarrier);
}

void Worker::bulk_multicast(const Bulk& bulk, uint64_t mbarrier, uint32_t blocks, uint64_t pc) {
  if (bulk.size == 0) return;
  if (checker_) {
    checker_->check_units(bulk, pc);
    checker_->bulk_load_reads(bulk.from, bulk.size, pc);
  }
  if (!blocks) return;
  send_to(blocks, {bulk.to, std::vector<char>(bulk.from, bulk.from + bulk.size), agent(rank()), false, pc}, mbarrier);
}

void Worker::store_async(char* to, const char* value, uint32_t size, const Combination& how, uint64_t mbarrier,
                         uint64_t pc) {
  const auto address = reinterpret_cast<uint64_t>(to);
  if (checker_ && address % size) checker_->fault(FindingKind::misaligned, pc, address, size, "an asynchronous store");
  send({to, std::vector<char>(value, value + size), agent(rank()), false, pc, how}, mbarrier);
}

#define KERNELSIM_HERE reinterpret_cast<uint64_t>(__builtin_return_address(0))

void bulk_send(void* to, const void* from, uint32_t size, uint64_t mbarrier, Combine operation, Number type) {
  current_worker()->bulk_send({static_cast<char*>(to), static_cast<const char*>(from), size, 16}, {operation, type},
                              mbarrier, KERNELSIM_HERE);
}
void bulk_multicast(void* to, const void* from, uint32_t size, uint64_t mbarrier, uint32_t blocks) {
  current_worker()->bulk_multicast({static_cast<char*>(to), static_cast<const char*>(from), size, 16}, mbarrier, blocks,
                                   KERNELSIM_HERE);
}
void store_async(void* to, const void* value, uint32_t size, uint64_t mbarrier, Combine operation, Number type) {
  current_worker()->store_async(static_cast<char*>(to), static_cast<const char*>(value), size, {operation, type}, mbarrier,
                                KERNELSIM_HERE);
}

}  // namespace kernelsim
