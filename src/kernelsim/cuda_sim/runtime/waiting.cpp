// Barriers of the block, operations of a warp, and what is wrong if threads wait for each other forever.

#include <string.h>

#include "checker.h"

namespace kernelsim {

namespace {

bool same_line(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

}  // namespace

unsigned Worker::barrier(BarrierKind kind, bool predicate, Site site) {
  Wait& wait = current_->wait;
  wait.operation = Operation::barrier;
  wait.site = site;
  wait.kind = kind;
  wait.answer = 0;
  if (arrived_.operation == Operation::none) {
    arrived_ = wait;
    same_barrier_ = true;
    came_ = agreed_ = 0;
  }
  same_barrier_ &= kind == arrived_.kind && same_line(site, arrived_.site);
  came_++;
  agreed_ += predicate;
  warp_of(rank()).at_barrier |= 1u << (rank() % 32);
  switch_to_next();
  return wait.answer;
}

// Opens the block's barrier if every thread that is left waits at the same one.
bool Worker::release_barrier() {
  const Thread* first = nullptr;
  for (size_t w = 0; w < warps_.size(); w++) {
    const unsigned lanes = warps_[w].at_barrier;
    if (warps_[w].alive != lanes) return false;
    if (lanes && !first) first = &threads_[w * 32 + unsigned(__builtin_ctz(lanes))];
  }
  if (!same_barrier_) return false;
  arrived_.operation = Operation::none;
  if (checker_) report_late_threads(*first);
  for (size_t w = 0; w < warps_.size(); w++) {
    const unsigned answering = arrived_.kind == BarrierKind::plain ? 0 : warps_[w].at_barrier;
    for (unsigned lanes = answering; lanes; lanes &= lanes - 1) {
      Wait& wait = threads_[w * 32 + unsigned(__builtin_ctz(lanes))].wait;
      switch (wait.kind) {
        case BarrierKind::plain: break;
        case BarrierKind::count: wait.answer = agreed_; break;
        case BarrierKind::all: wait.answer = agreed_ == came_; break;
        case BarrierKind::any: wait.answer = agreed_ != 0; break;
      }
    }
    warps_[w].ready |= warps_[w].at_barrier;
    warps_[w].at_barrier = 0;
  }
  cluster_.note_event();
  if (checker_) checker_->barrier_passed();
  if (launch_.past_deadline()) {
    current_ = const_cast<Thread*>(first);
    Finding found = finding(FindingKind::time_limit);
    found.file = first->wait.site.file;
    found.line = first->wait.site.line;
    launch_.report(found);
    launch_.stop();
    abandoned_ = true;
  }
  return true;
}

// CUDA's barriers do not wait for a thread that returned. A thread that reached the kernel's end without the barrier is
// different: the barrier is in code that it did not run, which is a finding.
void Worker::report_late_threads(const Thread& waiting) {
  unsigned late = 0;
  const Thread* one = nullptr;
  for (size_t w = 0; w < warps_.size(); w++) {
    const unsigned lanes = warps_[w].fell_off & ~warps_[w].reported_off;
    warps_[w].reported_off |= lanes;
    late += unsigned(__builtin_popcount(lanes));
    if (lanes && !one) one = &threads_[w * 32 + unsigned(__builtin_ctz(lanes))];
  }
  if (!one) return;
  current_ = const_cast<Thread*>(&waiting);
  Finding found = finding(FindingKind::barrier);
  found.file = waiting.wait.site.file;
  found.line = waiting.wait.site.line;
  found.mask = late;
  describe(unsigned(one - threads_.data()), found.other_block, found.other_thread);
  launch_.report(found);
}

Wait& Worker::warp_operation(Operation operation, unsigned mask, Site site) {
  Wait& wait = current_->wait;
  wait.operation = operation;
  wait.mask = mask;
  wait.site = site;
  wait.answer = 0;
  return wait;
}

unsigned Worker::wait_in_warp() {
  Wait& wait = current_->wait;
  const unsigned rank = this->rank(), bit = 1u << (rank % 32);
  if (!(wait.mask & bit)) {
    Finding found = finding(FindingKind::warp_mask);
    found.file = wait.site.file;
    found.line = wait.site.line;
    found.mask = wait.mask;
    found.value = -1;  // the caller itself is not in the mask
    launch_.report(found);
    abandon();
  }
  Warp& warp = warp_of(rank);
  warp.at_warp |= bit;
  if (complete_in_warp(rank / 32, wait)) {
    warp.ready &= ~bit;  // it runs already
  } else {
    switch_to_next();
  }
  return wait.answer;
}

// Runs the operation that the lanes in the mask wait for, if all that are alive wait for the same one.
bool Worker::complete_in_warp(unsigned warp, const Wait& wait) {
  Warp& state = warps_[warp];
  const unsigned lanes = wait.mask & state.alive;
  if ((lanes & state.at_warp) != lanes) return false;
  for (unsigned left = lanes; left; left &= left - 1) {
    const Wait& other = threads_[warp * 32 + unsigned(__builtin_ctz(left))].wait;
    if (other.mask != wait.mask || other.operation != wait.operation || !same_line(other.site, wait.site)) return false;
  }
  if (checker_) report_unheard_lanes(warp, wait);
  exchange(warp, lanes, wait);
  cluster_.note_event();
  state.at_warp &= ~lanes;
  state.ready |= lanes;
  if (checker_) checker_->lanes_joined(agent(warp * 32), lanes);
  return true;
}

void Worker::complete_all_in_warp(unsigned warp) {
  for (unsigned left = warps_[warp].at_warp; left; left &= left - 1) {
    const unsigned lane = unsigned(__builtin_ctz(left));
    if (warps_[warp].at_warp >> lane & 1u) complete_in_warp(warp, threads_[warp * 32 + lane].wait);
  }
}

void Worker::exchange(unsigned warp, unsigned lanes, const Wait& wait) {
  Thread* threads = &threads_[warp * 32];
  if (wait.operation == Operation::ballot) {
    unsigned votes = 0;
    for (unsigned left = lanes; left; left &= left - 1) {
      const unsigned lane = unsigned(__builtin_ctz(left));
      votes |= unsigned(threads[lane].wait.predicate) << lane;
    }
    for (unsigned left = lanes; left; left &= left - 1) threads[__builtin_ctz(left)].wait.answer = votes;
  }
  if (wait.operation == Operation::shuffle || wait.operation == Operation::wide_shuffle) {
    exchange_values(warp, lanes, wait);
  }
  if (wait.operation == Operation::gather) {
    for (unsigned left = lanes; left; left &= left - 1) {
      Wait& mine = threads[__builtin_ctz(left)].wait;
      for (unsigned all = lanes; all; all &= all - 1) {
        const unsigned lane = unsigned(__builtin_ctz(all));
        mine.gathered[lane] = threads[lane].wait.wide;
      }
      mine.answer = lanes;
    }
  }
  if (wait.operation == Operation::collective) {
    if (lanes != wait.mask) {  // a product of matrices needs the whole warp
      Finding found = finding(FindingKind::warp_mask);
      found.file = wait.site.file;
      found.line = wait.site.line;
      found.mask = wait.mask;
      found.missing = wait.mask & ~lanes;
      launch_.report(found);
    }
    void* values[32] = {};
    for (unsigned left = lanes; left; left &= left - 1) {
      const unsigned lane = unsigned(__builtin_ctz(left));
      values[lane] = const_cast<void*>(threads[lane].wait.value);
    }
    wait.compute(values);
  }
}

// A lane that is to read from one that does not take part gets its own value.
void Worker::exchange_values(unsigned warp, unsigned lanes, const Wait& wait) {
  Thread* threads = &threads_[warp * 32];
  const bool wide = wait.operation == Operation::wide_shuffle;
  uint64_t results[32];
  unsigned deaf = 0;
  for (unsigned left = lanes; left; left &= left - 1) {
    const unsigned lane = unsigned(__builtin_ctz(left));
    Wait& mine = threads[lane].wait;
    const bool there = mine.source < 32 && (lanes >> mine.source & 1u);
    if (!there) deaf |= 1u << lane;
    const Wait& source = there ? threads[mine.source].wait : mine;
    if (wide) {
      memcpy(mine.result, source.value, mine.size);
    } else {
      results[lane] = source.wide;
    }
  }
  if (!wide) {
    for (unsigned left = lanes; left; left &= left - 1) {
      const unsigned lane = unsigned(__builtin_ctz(left));
      threads[lane].wait.wide = results[lane];
    }
  }
  if (deaf && checker_) report_deaf_lanes(warp, deaf, wait);
}

void Worker::report_deaf_lanes(unsigned warp, unsigned deaf, const Wait& wait) {
  Thread* before = current_;
  current_ = &threads_[warp * 32 + unsigned(__builtin_ctz(deaf))];
  Finding found = finding(FindingKind::warp_lane);
  found.file = wait.site.file;
  found.line = wait.site.line;
  found.mask = wait.mask;
  found.value = int64_t(current_->wait.source);
  found.missing = deaf;
  launch_.report(found);
  current_ = before;
}

// Lanes of the mask that reached the kernel's end without this operation. (Lanes that returned do not count.)
void Worker::report_unheard_lanes(unsigned warp, const Wait& wait) {
  const unsigned missing = wait.mask & warps_[warp].fell_off;
  if (!missing) return;
  Finding found = finding(FindingKind::warp_mask);
  found.file = wait.site.file;
  found.line = wait.site.line;
  found.mask = wait.mask;
  found.missing = missing;
  launch_.report(found);
}

unsigned Worker::active_mask(Site site) {
  Thread& thread = *current_;
  thread.wait.operation = Operation::active_mask;
  thread.wait.site = site;
  warp_of(rank()).at_active |= 1u << (rank() % 32);
  switch_to_next();
  return thread.wait.answer;
}

// The lanes that reached the same __activemask() while the warp's others took another branch are active together.
bool Worker::release_active(Warp& warp, unsigned first_thread) {
  const Site site = threads_[first_thread + unsigned(__builtin_ctz(warp.at_active))].wait.site;
  unsigned together = 0;
  for (unsigned left = warp.at_active; left; left &= left - 1) {
    const unsigned lane = unsigned(__builtin_ctz(left));
    if (same_line(threads_[first_thread + lane].wait.site, site)) together |= 1u << lane;
  }
  for (unsigned left = together; left; left &= left - 1) threads_[first_thread + unsigned(__builtin_ctz(left))].wait.answer = together;
  warp.at_active &= ~together;
  warp.ready |= together;
  return true;
}

void Worker::yield(uint64_t pc) {
  check_deadline(launch_.relative(pc));
  warp_of(rank()).yielded |= 1u << (rank() % 32);
  switch_to_next();
}

// A thread that spins on atomics waits for another thread: of this block, which must then run, or of another one.
void Worker::note_atomic(uint64_t pc) {
  if ((++atomics_ & 1023u) == 0) yield(pc);
}

void Worker::check_deadline(uint64_t pc) {
  if (!launch_.past_deadline()) return;
  if (launch_.is_attempt()) refute_attempt();
  // After an out-of-bounds access a block is missing; a thread that waits for it is no finding.
  if (!launch_.any_block_abandoned.load(std::memory_order_relaxed) && current_ && !launch_.stopped()) {
    Finding found = finding(FindingKind::time_limit);
    found.pc = pc;
    launch_.report(found);
  }
  launch_.stop();
  abandon();
}

// --- findings ---

void Worker::describe(uint64_t unit, unsigned agent, uint32_t out_block[3], uint32_t out_thread[3]) const {
  const uint3 block = launch_.block_index(unit, member_of(agent));
  out_block[0] = block.x, out_block[1] = block.y, out_block[2] = block.z;
  const uint3 index = threads_[agent % most_agents].index;
  out_thread[0] = index.x, out_thread[1] = index.y, out_thread[2] = index.z;
}

Finding Worker::finding(FindingKind kind) const {
  Finding found{};
  found.kind = uint32_t(kind);
  if (current_) describe(rank(), found.block, found.thread);
  return found;
}

// No thread of the block can continue. Each place where threads wait is reported once, with a thread that waits elsewhere.
void Worker::report_deadlock() {
  const Thread* at_barrier = nullptr;
  const Thread* elsewhere = nullptr;
  unsigned waiting = 0;
  for (unsigned rank = 0; rank < threads_.size(); rank++) {
    Thread& thread = threads_[rank];
    const Warp& warp = warp_of(rank);
    const unsigned bit = 1u << (rank % 32);
    if (warp.at_barrier & bit) {
      waiting++;
      if (!at_barrier) at_barrier = &thread;
      if (!same_line(thread.wait.site, at_barrier->wait.site) && !elsewhere) elsewhere = &thread;
    }
  }
  bool in_warp = false;
  for (unsigned rank = 0; rank < threads_.size(); rank++) {
    const Warp& warp = warp_of(rank);
    if (!(warp.at_warp >> (rank % 32) & 1u)) continue;
    in_warp = true;
    current_ = &threads_[rank];
    const Wait& wait = current_->wait;
    Finding found = finding(FindingKind::warp_mask);
    found.file = wait.site.file;
    found.line = wait.site.line;
    found.mask = wait.mask;
    for (unsigned left = wait.mask & warp.alive; left; left &= left - 1) {
      const unsigned lane = unsigned(__builtin_ctz(left));
      const Thread& other = threads_[rank / 32 * 32 + lane];
      const bool came = (warp.at_warp >> lane & 1u) && other.wait.mask == wait.mask &&
                        other.wait.operation == wait.operation && same_line(other.wait.site, wait.site);
      if (came) continue;
      if (!found.missing) {
        describe(rank / 32 * 32 + lane, found.other_block, found.other_thread);
        found.other_file = other.wait.site.file;
        found.other_line = other.wait.site.line;
      }
      found.missing |= 1u << lane;
    }
    launch_.report(found);
  }
  if (report_endless_waits() || in_warp || !at_barrier) return;  // threads at the barrier wait for those
  current_ = const_cast<Thread*>(at_barrier);
  Finding found = finding(FindingKind::barrier);
  found.file = at_barrier->wait.site.file;
  found.line = at_barrier->wait.site.line;
  found.mask = waiting;
  if (elsewhere) {
    describe(unsigned(elsewhere - threads_.data()), found.other_block, found.other_thread);
    found.other_file = elsewhere->wait.site.file;
    found.other_line = elsewhere->wait.site.line;
  }
  launch_.report(found);
}

}  // namespace kernelsim
