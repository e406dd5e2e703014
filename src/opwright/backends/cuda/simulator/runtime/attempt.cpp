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

namespace opwright_sim {

namespace {

// What the memory that a kernel may write contained.
class Snapshot {
 public:
  explicit Snapshot(const Request& request) {
    for (uint64_t i = 0; i < request.region_count; i++) {
      const Region& region = request.regions[i];
      if (region.kind == uint32_t(RegionKind::read_only)) continue;
      keep(reinterpret_cast<uint8_t*>(region.begin), region.end - region.begin);
      if (region.written) keep(region.written, region.end - region.begin);
    }
  }
  void restore() const {
    for (const Part& part : parts_) {
      for (uint64_t begin = 0; begin < part.bytes.size(); begin += piece) {
        const uint8_t* before = &part.bytes[begin];
        const uint64_t size = std::min<uint64_t>(piece, part.bytes.size() - begin);
        // What did not change is not written: it may be a constant, in pages that are read-only.
        if (memcmp(part.at + begin, before, size) != 0) memcpy(part.at + begin, before, size);
      }
    }
  }

 private:
  static constexpr uint64_t piece = 4096;
  struct Part {
    uint8_t* at;
    std::vector<uint8_t> bytes;
  };
  void keep(uint8_t* at, uint64_t size) { parts_.push_back({at, std::vector<uint8_t>(at, at + size)}); }
  std::vector<Part> parts_;
};

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

}  // namespace opwright_sim
