// What is ordered through atomics: the releases at a location, who has seen them, and the fences that make them so.
#pragma once

#include <stdint.h>

#include <functional>
#include <unordered_map>
#include <vector>

#include "vector_clock.h"

namespace kernelsim {

struct SyncObject;

// A thread has seen the first `count` releases of an object.
struct Acquired {
  const SyncObject* object;
  uint32_t count;
  uint16_t thread;
  uint32_t time;
};

// A thread made an atomic access that releases: what it did before `time` is visible to threads that see it, and of what
// others did, all that it knew of then. That is the time of its last fence, or of the access if that is itself a release.
struct Release {
  uint32_t index;
  uint32_t block, time;
  uint32_t known_since;   // a barrier of the block: what its threads did before that was known at `time`
  uint32_t barrier_time;  // the same for the access: the threads may have fenced themselves before that
  uint32_t own_time;      // of the access
  uint16_t thread;
  uint32_t seen[32];
  uint32_t acquired;  // so many of what the block's threads have acquired came before
  VectorClock known;
};

// A location with atomic accesses. One in shared memory is another one in each cluster.
struct Location {
  uint64_t address;
  uint32_t unit;  // 0: global memory
  bool operator==(const Location& other) const { return address == other.address && unit == other.unit; }
};
struct HashOfLocation {
  size_t operator()(const Location& at) const {
    return std::hash<uint64_t>()(at.address * 0x9e3779b97f4a7c15ull ^ at.unit);
  }
};

struct SyncObject {
  uint32_t count = 0;
  std::unordered_map<uint32_t, std::vector<Release>> by_block;
};

// A thread's last fence, and the barrier of its block before that.
struct LastFence {
  uint32_t time = 0;  // 0: none
  uint32_t known_since = 0;
};

// All fences of a cluster's threads, the latest first.
class Fences {
 public:
  void add(uint16_t thread, uint32_t time, bool replaces_last) {
    if (thread >= last_.size()) last_.resize(thread + 1u, 0);
    uint32_t& last = last_[thread];
    if (last && replaces_last) {
      all_[last - 1].time = time;
      return;
    }
    all_.push_back({time, last});
    last = uint32_t(all_.size());
  }
  // Whether a thread fenced between two times.
  bool any_between(uint16_t thread, uint32_t after, uint32_t before) const {
    for (uint32_t at = thread < last_.size() ? last_[thread] : 0; at; at = all_[at - 1].earlier) {
      if (all_[at - 1].time <= after) return false;
      if (all_[at - 1].time < before) return true;
    }
    return false;
  }

 private:
  struct Fence {
    uint32_t time, earlier;  // earlier: the place in `all_` of the thread's one before, plus one
  };
  std::vector<uint32_t> last_;  // by thread, as `earlier`
  std::vector<Fence> all_;
};

}  // namespace kernelsim
