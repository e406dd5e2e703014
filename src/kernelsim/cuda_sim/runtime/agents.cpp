// What the checker knows of objects on which threads arrive and wait, and of units that copy for a thread while it goes
// on: which accesses these order, and which they make.

#include <string.h>

#include "checker.h"

namespace kernelsim {

// An access to an object that has no value of its own for the kernel, such as an mbarrier.
void Checker::object_access(uint64_t address, uint32_t what, uint64_t pc) {
  constexpr uint32_t size = 8;
  if (address % size) fault(FindingKind::misaligned, pc, address, size, "an mbarrier");
  BlockOfCluster* block = block_with(address);
  if (!block) out_of_bounds(Space::global, address, size, what, pc);
  if (block != here_) {
    visit(*block, {address - block->storage_begin, pc, size, what, time_}, !(what & access_atomic));
  }
  const Elsewhere there(*this, *block);
  const uint64_t offset = address - storage_begin_;
  // It orders threads by its clocks alone, so it is examined as a plain access, and then recorded as what it is.
  if (examine_shared(offset, size, what & ~uint32_t(access_atomic), pc)) record_shared(offset, size, what, pc);
}

void Checker::object_ends(uint64_t address) { memset(&shared_written_[address - storage_begin_], no_value, 8); }

void Checker::release_to(VectorClock& clock) {
  if (is_cluster_) {  // elsewhere it is not known what all threads of this block know
    clock.raise_block(member_of(me_), ordered_since_);
    clock.join(here_->common);
  }
  for (unsigned lane = 0; lane < 32; lane++) clock.raise(me_ / 32 * 32 + lane, seen(me_, lane));
  if (!known_.empty()) clock.join(known_[me_]);
  clock.raise(me_, ++time_);
}

void Checker::acquire(unsigned agent, const VectorClock& clock) {
  if (known_.empty()) known_.resize(fenced_.size());
  known_[agent].join(clock);
}

// After a barrier of the block all threads know what any of them knew.
void Checker::share_knowledge() {
  const unsigned first = here_->worker->agent(0);
  for (unsigned i = first; i < first + threads_; i++) {
    here_->common.join(known_[i]);
    known_[i].clear();
  }
}

void Checker::share_knowledge(unsigned warp, unsigned lanes) {
  VectorClock all;
  for (unsigned left = lanes; left; left &= left - 1) all.join(known_[warp * 32 + unsigned(__builtin_ctz(left))]);
  if (all.is_empty()) return;
  for (unsigned left = lanes; left; left &= left - 1) known_[warp * 32 + unsigned(__builtin_ctz(left))] = all;
}

void Checker::check_units(const Bulk& bulk, uint64_t pc) {
  for (const void* pointer : {static_cast<const void*>(bulk.to), static_cast<const void*>(bulk.from)}) {
    const auto address = reinterpret_cast<uint64_t>(pointer);
    if (address % bulk.unit) fault(FindingKind::misaligned, pc, address, bulk.unit, "a bulk copy");
  }
  if (bulk.size % bulk.unit) fault(FindingKind::misaligned, pc, bulk.size, bulk.unit, "a bulk copy's size");
}

// As of a smaller copy: the source is read and the target taken at once; the target has no values before it arrives.
void Checker::bulk_load_reads(const char* from, uint32_t size, uint64_t pc) {
  const As loads(*this, bulk_loads, me_);
  access(reinterpret_cast<uint64_t>(from), size, access_read, pc);
}

void Checker::bulk_load_takes(const BulkCopy& copy) {
  const auto target = reinterpret_cast<uint64_t>(copy.to);
  const auto size = uint32_t(copy.data.size());
  BlockOfCluster* block = block_with(target);
  if (!block) out_of_bounds(Space::global, target, size, access_write, copy.pc);
  const As loads(*this, bulk_loads, me_);
  access(target, size, access_of(copy.how), copy.pc);
  if (copy.how.operation != Combine::replace) return;
  memset(&block->written[target - block->storage_begin], no_value, size);
  memset(reinterpret_cast<void*>(target), 0xff, size);
}

// The clock is that of the threads that wait for the copy.
void Checker::bulk_load_ends(const BulkCopy& copy, VectorClock& clock) {
  {
    const As loads(*this, bulk_loads, copy.agent);
    finds_races_ = false;
    access(reinterpret_cast<uint64_t>(copy.to), uint32_t(copy.data.size()), access_of(copy.how), copy.pc);
    finds_races_ = true;
  }
  clock.raise(unit_of(bulk_loads, copy.agent), ++time_);
  if (copy.from_shared) clock.raise(unit_of(bulk_reads, copy.agent), time_);
}

// --- copies out of shared memory ---

void Checker::bulk_store_reads(const char* from, uint32_t size, uint64_t pc) {
  is_simple_ = false;  // a barrier of the block does not wait for it
  const auto source = reinterpret_cast<uint64_t>(from);
  if (source - storage_begin_ >= storage_size_) out_of_bounds(Space::global, source, size, access_read, pc);
  const As reads(*this, bulk_reads, me_);
  access(source, size, access_read, pc);
}

void Checker::bulk_store_writes(const char* to, uint32_t size, uint32_t what, uint64_t pc) {
  const As stores(*this, bulk_stores, me_);
  access(reinterpret_cast<uint64_t>(to), size, what, pc);
}

void Checker::wait_for_bulk_stores(uint32_t groups, bool only_reads) {
  const std::vector<uint32_t>& committed = bulk_groups_of(me_);
  if (committed.size() <= groups) return;
  const uint32_t time = committed[committed.size() - 1 - groups];
  knows_of(unit_of(bulk_reads, me_), time);
  if (!only_reads) knows_of(unit_of(bulk_stores, me_), time);
}

void Checker::knows_of(unsigned agent, uint32_t time) {
  VectorClock clock;
  clock.raise(agent, time);
  acquire(me_, clock);
}

// A thread's writes reach the units that work asynchronously through a fence, of the thread or of the one that has them
// read.
bool Checker::lacks_proxy_fence(const Record& written) const {
  if (written.time < block_time_ || !is_thread(written.thread)) return false;
  return proxy_fences_[written.thread] <= written.time && proxy_fences_[me_] <= written.time;
}

}  // namespace kernelsim
