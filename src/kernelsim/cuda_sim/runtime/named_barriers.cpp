// Barriers of some of a block's threads (bar.sync and bar.arrive with a number).

#include <stdio.h>

#include "checker.h"

namespace kernelsim {

// The barrier that `threads` threads meet at; their number may differ from one phase to the next.
Mbarrier& Worker::barrier_of(uint64_t key, uint32_t threads, uint64_t pc) {
  Mbarrier& barrier = mbarriers_.try_emplace(key, Mbarrier{threads, threads}).first->second;
  if (barrier.pending == barrier.expected) barrier.pending = barrier.expected = threads;
  const bool whole_warps = threads % 32 == 0 || threads == threads_.size();
  if (barrier.expected != threads || !whole_warps || threads > threads_.size()) {
    Finding found = finding(FindingKind::barrier);
    found.pc = launch_.relative(pc);
    snprintf(found.text, sizeof found.text,
             "meets %u threads at a barrier of %u: a number of whole warps of the block is needed, the same for all", threads,
             barrier.expected);
    launch_.report(found);
    abandon();
  }
  return barrier;
}

// The result is the phase in which the thread came.
uint64_t Worker::arrive_at(Mbarrier& barrier) {
  const uint64_t phase = barrier.phase;
  if (checker_) checker_->release_to(barrier.arriving);
  barrier.pending--;
  cluster_.note_event();
  complete_phase(barrier);
  return phase;
}

void Worker::await_phase(Mbarrier& barrier, const PhaseWait& phase) {
  if (!phase.is_over(barrier)) {
    wait_for_phase(barrier, phase);
  } else if (checker_) {
    checker_->acquire(agent(rank()), barrier.completed);
  }
}

void Worker::named_barrier(uint32_t number, uint32_t threads, bool waits, Site site, uint64_t pc) {
  const auto all = uint32_t(threads_.size());
  if (number == 0 && waits && (threads == 0 || threads == all)) {
    barrier(BarrierKind::plain, false, site);
    return;
  }
  const uint64_t key = first_named_barrier + number % named_barriers;
  Mbarrier& met = barrier_of(key, threads ? threads : all, pc);
  const uint64_t phase = arrive_at(met);
  if (waits) await_phase(met, {key, phase, false, false, pc});
}

void named_barrier(uint32_t number, uint32_t threads, bool waits, Site site) {
  current_worker()->named_barrier(number, threads, waits, site, reinterpret_cast<uint64_t>(__builtin_return_address(0)));
}

}  // namespace kernelsim
