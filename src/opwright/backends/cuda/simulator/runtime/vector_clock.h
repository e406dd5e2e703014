// Vector clocks: which accesses of the others a thread knows to have happened before. Barriers of a block and of a warp
// need none; objects in shared memory on which threads arrive and wait (mbarriers, named barriers) do.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <vector>

namespace opwright_sim {

// Whose accesses are told apart: the block's threads, and for each warp the units that work for it asynchronously.
constexpr unsigned most_threads = 1024, most_warps = 32;
constexpr unsigned bulk_loads = most_threads;            // fill shared memory
constexpr unsigned bulk_reads = bulk_loads + most_warps;  // read shared memory, to copy it to global memory
constexpr unsigned bulk_stores = bulk_reads + most_warps;
constexpr unsigned tensor_cores = bulk_stores + most_warps;
constexpr unsigned most_agents = tensor_cores + most_warps;

class VectorClock {
 public:
  bool is_empty() const { return times_.empty(); }
  // The agent's accesses before this time are known.
  uint32_t at(unsigned agent) const { return times_.empty() ? 0 : times_[agent]; }
  void raise(unsigned agent, uint32_t time) {
    if (times_.empty()) times_.assign(most_agents, 0);
    times_[agent] = std::max(times_[agent], time);
  }
  void join(const VectorClock& other) {
    if (other.times_.empty()) return;
    if (times_.empty()) {
      times_ = other.times_;
      return;
    }
    for (unsigned i = 0; i < most_agents; i++) times_[i] = std::max(times_[i], other.times_[i]);
  }
  void clear() { times_.clear(); }

 private:
  std::vector<uint32_t> times_;
};

}  // namespace opwright_sim
