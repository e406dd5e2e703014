// Vector clocks: which accesses of the others a thread knows to have happened before. Barriers of a block and of a warp
// need none; objects in shared memory on which threads arrive and wait (mbarriers, named barriers) do, and the barrier of
// a cluster.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

namespace kernelsim {

// Whose accesses are told apart in one block: its threads, and for each warp the units that work for it asynchronously.
// The blocks of a cluster follow each other.
constexpr unsigned most_threads = 1024, most_warps = 32;
constexpr unsigned bulk_loads = most_threads;            // fill shared memory
constexpr unsigned bulk_reads = bulk_loads + most_warps;  // read shared memory, to copy it to global memory
constexpr unsigned bulk_stores = bulk_reads + most_warps;
constexpr unsigned tensor_cores = bulk_stores + most_warps;
constexpr unsigned most_agents = tensor_cores + most_warps;
// Blocks that run together: a cluster, or the grid of a cooperative launch. As many as 16 bits can tell apart.
constexpr unsigned most_members = 65536 / most_agents;

inline unsigned member_of(unsigned agent) { return agent / most_agents; }
inline unsigned first_of_block(unsigned agent) { return agent - agent % most_agents; }
inline bool is_thread(unsigned agent) { return agent % most_agents < most_threads; }

class VectorClock {
 public:
  bool is_empty() const { return !times_ && !members_; }
  // The agent's accesses before this time are known.
  uint32_t at(unsigned agent) const {
    const uint32_t own = times_ && agent < times_->size() ? (*times_)[agent] : 0;
    return is_thread(agent) ? std::max(own, of_blocks_[member_of(agent)]) : own;
  }
  // Whether anything is known of a block of the cluster: that it has started.
  bool knows(unsigned member) const { return members_ >> member & 1u; }
  void raise(unsigned agent, uint32_t time) {
    note_start(member_of(agent));
    if (at(agent) >= time) return;
    std::vector<uint32_t>& mine = own(agent);
    mine[agent] = time;
  }
  // The same for all threads of a block of the cluster.
  void raise_block(unsigned member, uint32_t time) {
    note_start(member);
    of_blocks_[member] = std::max(of_blocks_[member], time);
  }
  void note_start(unsigned member) { members_ |= uint64_t(1) << member; }
  void join(const VectorClock& other) {
    members_ |= other.members_;
    for (unsigned i = 0; i < most_members; i++) of_blocks_[i] = std::max(of_blocks_[i], other.of_blocks_[i]);
    if (!other.times_ || times_ == other.times_) return;
    if (!times_ || covers(*other.times_, *times_)) {
      times_ = other.times_;
      return;
    }
    if (covers(*times_, *other.times_)) return;
    std::vector<uint32_t>& mine = own(unsigned(other.times_->size()) - 1);
    for (size_t i = 0; i < other.times_->size(); i++) mine[i] = std::max(mine[i], (*other.times_)[i]);
  }
  void clear() {
    times_.reset();
    of_blocks_ = {};
    members_ = 0;
  }

 private:
  using Times = std::vector<uint32_t>;
  // Whether all times of the second are also in the first.
  static bool covers(const Times& first, const Times& second) {
    if (first.size() < second.size()) return false;
    bool all = true;
    for (size_t i = 0; i < second.size(); i++) all &= first[i] >= second[i];
    return all;
  }
  // The times as no other clock's, with room for an agent.
  Times& own(unsigned agent) {
    const size_t size = std::max<size_t>(times_ ? times_->size() : 0, (member_of(agent) + 1) * most_agents);
    if (!times_) {
      times_ = std::make_shared<Times>();
    } else if (times_.use_count() > 1) {
      times_ = std::make_shared<Times>(*times_);
    }
    times_->resize(size);
    return *times_;
  }

  std::shared_ptr<Times> times_;  // threads that waited for the same barrier have the same ones
  std::array<uint32_t, most_members> of_blocks_{};
  uint64_t members_ = 0;
};

}  // namespace kernelsim
