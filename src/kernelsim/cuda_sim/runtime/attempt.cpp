// The blocks of a checked launch on several OS threads, as an attempt.
//
// What a checked launch does and finds depends only on its arguments and the seed, as if its blocks ran one after
// another. That is also so for blocks that run at the same time, if none has a finding, none accesses what another
// wrote, and none uses what orders blocks (atomics in global memory, volatile accesses, fences). So each OS thread has a
// shadow of its own, and these are compared afterwards. If anything is in doubt, memory is restored and the blocks run
// in order.

#include "attempt.h"

#include <exception>
#include <memory>
#include <new>
#include <thread>

#include "snapshot.h"

namespace kernelsim {

namespace {

// One OS thread of an attempt. Its checker outlives it, for the comparison.
void run_some_blocks(Launch& launch, Watchdog& watchdog, std::unique_ptr<Checker>& checker) {
  try {
    checker = std::make_unique<Checker>(launch.request);
    run_worker(launch, watchdog, checker.get());
  } catch (const std::bad_alloc&) {
    launch.refute_attempt();
  }
}

// Whether all blocks ran.
bool run_all_blocks(Launch& launch, Watchdog& watchdog, std::vector<std::unique_ptr<Checker>>& checkers) {
  std::vector<std::thread> threads;
  only_checker = nullptr;
  slot_in_attempt = launch.request.thread_slot;
  try {
    for (auto& checker : checkers) {
      threads.emplace_back([&launch, &watchdog, &checker] { run_some_blocks(launch, watchdog, checker); });
    }
  } catch (const std::exception&) {
    launch.refute_attempt();  // the system has no further thread
  }
  for (std::thread& thread : threads) thread.join();
  slot_in_attempt = 0;
  return launch.end_attempt();
}

}  // namespace

bool attempt_blocks_together(Launch& launch, Watchdog& watchdog, Checker& before, unsigned threads) {
  std::unique_ptr<Snapshot> snapshot;
  std::vector<std::unique_ptr<Checker>> checkers(threads);
  try {
    snapshot = std::make_unique<Snapshot>(launch.request);
  } catch (const std::bad_alloc&) {
    return false;
  }
  launch.begin_attempt();
  bool done = run_all_blocks(launch, watchdog, checkers);
  if (done) {
    std::vector<Checker*> all{&before};
    for (auto& checker : checkers) all.push_back(checker.get());
    done = Checker::are_independent(all);
  }
  only_checker = &before;
  if (!done) {
    snapshot->restore();
    launch.repeat_blocks();
  }
  return done;
}

}  // namespace kernelsim
