// mbarriers, and the bulk copies that complete on them.

#include "mbarrier.h"

#include <stdio.h>
#include <string.h>

#include <utility>

#include "checker.h"

namespace kernelsim {

namespace {

constexpr uint32_t most_arrivals = (1u << 20) - 1;

}  // namespace

void Worker::mbarrier_init(uint64_t address, uint32_t count, uint64_t pc) {
  if (checker_) checker_->object_access(address, access_write, pc);
  if (count == 0 || count > most_arrivals) {
    report_mbarrier(address, pc, "is initialised with a count that is not between 1 and 1048575");
  }
  Mbarrier& barrier = owner_of(address).mbarriers_[address];
  if (!barrier.copies.empty() || !barrier.waiting.empty()) {
    report_mbarrier(address, pc, "is initialised while threads or bulk copies still use it");
  }
  barrier = Mbarrier{count, count};
}

void Worker::mbarrier_inval(uint64_t address, uint64_t pc) {
  Mbarrier& barrier = mbarrier_at(address, access_write, pc);
  if (!barrier.copies.empty() || !barrier.waiting.empty()) {
    report_mbarrier(address, pc, "is invalidated while threads or bulk copies still use it");
  }
  owner_of(address).mbarriers_.erase(address);
  if (checker_) checker_->object_ends(address);
}

// The block in whose shared memory an address is.
Worker& Worker::owner_of(uint64_t address) {
  Worker* owner = cluster_.size == 1 ? nullptr : cluster_.owner_of(address);
  return owner ? *owner : *this;
}

Mbarrier& Worker::mbarrier_at(uint64_t address, uint32_t access, uint64_t pc) {
  if (checker_) checker_->object_access(address, access, pc);
  Mbarriers& known = owner_of(address).mbarriers_;
  const auto found = known.find(address);
  if (found == known.end()) report_mbarrier(address, pc, "is used without mbarrier.init");
  return found->second;
}

// The result is the token that test_wait takes: the phase, and the arrivals that were missing in it.
uint64_t Worker::mbarrier_arrive(uint64_t address, const Arrival& arrival, uint64_t pc) {
  Mbarrier& barrier = mbarrier_at(address, access_read | access_atomic, pc);
  const uint64_t token = barrier.phase << 32 | barrier.pending;
  if (arrival.expected_bytes) mbarrier_transaction(address, arrival.expected_bytes, pc);
  if (arrival.count > barrier.pending) report_mbarrier(address, pc, "gets more arrivals in a phase than its count");
  if (checker_ && arrival.releases) {
    if (cluster_.size > 1) checker_->arrives_elsewhere(address, pc);
    checker_->release_to(barrier.arriving);
  }
  barrier.pending -= arrival.count;
  if (arrival.drops) barrier.expected -= arrival.count;
  cluster_.note_event();
  owner_of(address).complete_phase(barrier);
  return token;
}

// More bytes are expected, or, of a negative number, have come.
void Worker::mbarrier_transaction(uint64_t address, int64_t bytes, uint64_t pc) {
  Mbarrier& barrier = mbarrier_at(address, access_read | access_atomic, pc);
  barrier.bytes += bytes;
  if (barrier.bytes > most_transaction_bytes || barrier.bytes < -most_transaction_bytes) {
    report_mbarrier(address, pc, "expects more bytes than the 1048575 that its count of transactions can hold");
  }
  cluster_.note_event();
  if (bytes < 0) owner_of(address).complete_phase(barrier);
}

void Worker::complete_phase(Mbarrier& barrier) {
  if (!barrier.is_complete()) return;
  barrier.phase++;
  barrier.pending = barrier.expected;
  barrier.completed.join(barrier.arriving);
  barrier.arriving.clear();
  wake_waiting(barrier);
}

void Worker::wake_waiting(Mbarrier& barrier) {
  std::vector<unsigned> still;
  for (unsigned rank : barrier.waiting) {
    Wait& wait = threads_[rank].wait;
    if (!wait.phase.is_over(barrier)) {
      still.push_back(rank);
      continue;
    }
    if (checker_) checker_->acquire(agent(rank), barrier.completed);
    wait.answer = 1;
    warp_of(rank).at_mbarrier &= ~(1u << (rank % 32));
    warp_of(rank).ready |= 1u << (rank % 32);
  }
  barrier.waiting = std::move(still);
}

// Whether the phase is over; false only if the wait timed out.
bool Worker::mbarrier_wait(const PhaseWait& phase) {
  Mbarrier& barrier = mbarrier_at(phase.address, access_read | access_atomic, phase.pc);
  if (&owner_of(phase.address) != this) {
    report_mbarrier(phase.address, phase.pc, "is waited for by a thread of another block: only its own block can");
  }
  if (phase.is_over(barrier)) {
    if (checker_) checker_->acquire(agent(rank()), barrier.completed);
    return true;
  }
  if (checker_ && phase.may_time_out && fails_at_first(phase.address, barrier.phase)) return false;
  return wait_for_phase(barrier, phase);
}

// A thread's first try to wait for a phase that has not ended fails, as PTX allows: one that does not look at the result
// is found by what it does then.
bool Worker::fails_at_first(uint64_t address, uint64_t phase) {
  auto& tried = current_->tried_phases;
  const auto same = std::find_if(tried.begin(), tried.end(), [&](const auto& one) { return one.first == address; });
  if (same == tried.end()) {
    tried.emplace_back(address, phase);
    return true;
  }
  const bool is_first = same->second != phase;
  same->second = phase;
  return is_first;
}

bool Worker::wait_for_phase(Mbarrier& barrier, const PhaseWait& phase) {
  Wait& wait = current_->wait;
  wait.operation = Operation::phase;
  wait.phase = phase;
  wait.answer = 0;
  barrier.waiting.push_back(rank());
  warp_of(rank()).at_mbarrier |= 1u << (rank() % 32);
  switch_to_next();
  return wait.answer;
}

// --- bulk copies ---

void Worker::bulk_load(const Bulk& bulk, uint64_t mbarrier, uint64_t pc) {
  if (bulk.size == 0) return;
  if (checker_) {
    checker_->check_units(bulk, pc);
    checker_->bulk_load_reads(bulk.from, bulk.size, pc);
  }
  send({bulk.to, std::vector<char>(bulk.from, bulk.from + bulk.size), agent(rank()), false, pc}, mbarrier);
}

// A copy is on its way into shared memory: it takes its target at once.
void Worker::send(BulkCopy copy, uint64_t mbarrier) {
  Mbarrier& barrier = mbarrier_at(mbarrier, access_read | access_atomic, copy.pc);
  if (&owner_of(mbarrier) != &owner_of(reinterpret_cast<uint64_t>(copy.to))) {
    report_mbarrier(mbarrier, copy.pc, "is not in the shared memory of the block that the copy goes to");
  }
  if (checker_) checker_->bulk_load_takes(copy);
  barrier.copies.push_back(std::move(copy));
  cluster_.note_event();
}

// The same to several blocks, at the same places in their shared memory. `blocks` has a bit for each; 0: where it says.
void Worker::send_to(uint32_t blocks, const BulkCopy& copy, uint64_t mbarrier) {
  if (!blocks) return send(copy, mbarrier);
  for (uint32_t left = blocks; left; left &= left - 1) {
    const auto number = uint32_t(__builtin_ctz(left));
    BulkCopy one = copy;
    one.to = reinterpret_cast<char*>(in_block(reinterpret_cast<uint64_t>(copy.to), number, copy.pc));
    send(std::move(one), in_block(mbarrier, number, copy.pc));
  }
}

// Copies arrive as late as they may: once all threads that could run wait, and some of them for these.
bool Worker::deliver_bulk_copies() {
  bool any = false;
  for (auto& [address, barrier] : mbarriers_) {
    if (barrier.copies.empty() || barrier.waiting.empty()) continue;
    deliver(barrier);
    any = true;
  }
  return any;
}

void Worker::deliver(Mbarrier& barrier) {
  for (const BulkCopy& copy : barrier.copies) {
    put(copy.to, copy.data.data(), uint32_t(copy.data.size()), copy.how);
    if (checker_) checker_->bulk_load_ends(copy, barrier.arriving);
    barrier.bytes -= int64_t(copy.data.size());
  }
  barrier.copies.clear();
  cluster_.note_event();
  complete_phase(barrier);
}

// --- waits that do not end ---

// Some threads wait, and nothing else can go on. Those whose wait may time out get to do something else.
bool Worker::end_waits_that_may_time_out() {
  bool any = false;
  for (auto& [address, barrier] : mbarriers_) {
    std::vector<unsigned> still;
    for (unsigned rank : barrier.waiting) {
      if (!threads_[rank].wait.phase.may_time_out) {
        still.push_back(rank);
        continue;
      }
      warp_of(rank).at_mbarrier &= ~(1u << (rank % 32));
      warp_of(rank).ready |= 1u << (rank % 32);
      any = true;
    }
    barrier.waiting = std::move(still);
  }
  return any;
}

// The object cannot be used so: the block ends.
void Worker::report_mbarrier(uint64_t address, uint64_t pc, const char* what) {
  Finding found = finding(FindingKind::barrier);
  found.pc = launch_.relative(pc);
  found.space = uint32_t(Space::shared);
  found.address = owner_of(address).shared_offset(address);
  found.size = 8;
  set_owner(found, owner_of(address));
  snprintf(found.text, sizeof found.text, "%s", what);
  launch_.report(found);
  abandon();
}

// A wait for a barrier that is no object in memory.
void Worker::describe_wait(Finding& found, uint64_t key, const Mbarrier& barrier) const {
  if (key < first_named_barrier) {
    snprintf(found.text, sizeof found.text, "waits for products (wgmma) that other warps of its warpgroup never issue");
    return;
  }
  const bool is_cluster = key == cluster_barrier;
  char name[32] = "the cluster's barrier";
  if (launch_.is_cooperative()) snprintf(name, sizeof name, "the grid's barrier");
  if (!is_cluster) snprintf(name, sizeof name, "barrier %u", unsigned(key - first_named_barrier));
  snprintf(found.text, sizeof found.text, "%s is waited for without end: %u of %u threads are missing", name,
           is_cluster ? cluster_.missing() : barrier.pending, is_cluster ? cluster_.alive() : barrier.expected);
}

// Each place where threads wait for an mbarrier whose phase cannot end, with what is missing.
bool Worker::report_endless_waits() {
  bool any = false;
  for (unsigned rank = 0; rank < threads_.size(); rank++) {
    if (!(warp_of(rank).at_mbarrier >> (rank % 32) & 1u)) continue;
    any = true;
    current_ = &threads_[rank];
    const PhaseWait& wait = current_->wait.phase;
    const Mbarrier& barrier = mbarriers_[wait.address];
    Finding found = finding(FindingKind::barrier);
    found.pc = launch_.relative(wait.pc);
    if (wait.address < least_address) {
      describe_wait(found, wait.address, barrier);
      launch_.report(found);
      continue;
    }
    found.space = uint32_t(Space::shared);
    found.address = shared_offset(wait.address);
    found.size = 8;
    snprintf(found.text, sizeof found.text,
             "is waited for without end: in its phase %llu, %u of %u arrivals and %lld bytes are missing",
             static_cast<unsigned long long>(barrier.phase), barrier.pending, barrier.expected,
             static_cast<long long>(barrier.bytes));
    launch_.report(found);
  }
  return any;
}

}  // namespace kernelsim
