// The registers that wgmma accumulates in: a thread may use them only once it has waited, and has them taken again only
// after a fence.

#include <stdio.h>

#include <algorithm>

#include "checker.h"

namespace kernelsim {

Products& Checker::products() {
  if (products_.empty()) products_.resize(fenced_.size());
  return *(my_products_ = &products_[me_]);
}

// A product of the running thread accumulates in these registers, which belong to the group that is committed next.
void Checker::accumulators_taken(void* const* registers, unsigned count, uint64_t pc) {
  is_simple_ = false;  // a barrier of the block does not wait for it
  Products& mine = products();
  if (!mine.ever_fenced) report_accumulator(FindingKind::race, 0, pc, pc, "no wgmma.fence comes before this wgmma");
  mine.ever_fenced = true;  // reported once
  for (unsigned i = 0; i < count;) {
    const auto begin = reinterpret_cast<uint64_t>(registers[i]);
    uint64_t end = begin + 4;
    for (i++; i < count && reinterpret_cast<uint64_t>(registers[i]) == end; i++) end += 4;
    const auto same = std::find_if(mine.accumulators.begin(), mine.accumulators.end(), [&](const Accumulators& one) {
      return begin < one.end && one.begin < end;
    });
    Accumulators taken{begin, end, uint32_t(mine.groups.size()), true, false, 0, pc};
    if (same == mine.accumulators.end()) {
      mine.accumulators.push_back(taken);
      continue;
    }
    if (same->touched) {
      report_accumulator(FindingKind::race, begin, pc, same->touched_at,
                         "a register that this wgmma uses was written, and no wgmma.fence came after that");
    }
    *same = taken;
  }
}

void Checker::accumulators_fenced() {
  Products& mine = products();
  mine.ever_fenced = true;
  for (Accumulators& one : mine.accumulators) one.touched = false;
}

void Checker::commit_products() { products().groups.push_back(++time_); }

void Checker::wait_for_products(uint32_t groups) {
  Products& mine = products();
  if (mine.groups.size() <= groups) return;
  const uint32_t complete = uint32_t(mine.groups.size()) - groups;
  for (Accumulators& one : mine.accumulators) one.in_flight &= one.group >= complete;
  constexpr unsigned warps_of_a_warpgroup = 4;
  const unsigned first = me_ / 32 / warps_of_a_warpgroup * warps_of_a_warpgroup;
  for (unsigned warp = first; warp < first + warps_of_a_warpgroup; warp++) {  // all have issued the group
    const std::vector<uint32_t>& committed = products_[warp * 32].groups;
    if (committed.size() >= complete) knows_of(unit_of(tensor_cores, warp * 32), committed[complete - 1]);
  }
}

// The thread accesses its own stack.
void Checker::local_access(uint64_t address, uint32_t size, uint32_t what, uint64_t pc) {
  for (Accumulators& one : my_products_->accumulators) {
    if (address >= one.end || address + size <= one.begin) continue;
    if (one.in_flight) {
      const bool reads = what == access_read;
      report_accumulator(reads ? FindingKind::uninitialised : FindingKind::race, address, pc, one.taken_at,
                         reads ? "reads an accumulator of a wgmma that the thread has not waited for"
                               : "writes an accumulator of a wgmma that the thread has not waited for");
    } else if (what & access_write) {
      one.touched = true;
      one.touched_at = pc;
    }
  }
}

void Checker::report_accumulator(FindingKind kind, uint64_t address, uint64_t pc, uint64_t other_pc, const char* what) {
  Finding found = memory_finding(kind, Space::local, address, 4, access_read, pc);
  found.other_pc = relative(other_pc);
  worker_->describe(worker_->cluster().unit(), me_, found.other_block, found.other_thread);
  snprintf(found.text, sizeof found.text, "%s", what);
  worker_->launch().report(found);
}

// A piece of a tile. The thread that runs stands for its warp.
void Checker::tensor_cores_read(const char* piece, uint32_t size, uint64_t pc) {
  const auto address = reinterpret_cast<uint64_t>(piece);
  if (address - storage_begin_ >= storage_size_) out_of_bounds(Space::global, address, size, access_read, pc);
  const As reads(*this, tensor_cores, me_);
  access(address, size, access_read, pc);
}

}  // namespace kernelsim
