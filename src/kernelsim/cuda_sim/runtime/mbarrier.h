// The barriers of PTX's mbarrier instructions and of cuda::barrier: objects in shared memory that count arrivals and the
// bytes of bulk copies. Their 64 bits are opaque in CUDA, so the simulator keeps their state beside the memory.
#pragma once

#include <stdint.h>

#include <map>
#include <vector>

#include "../include/kernelsim/runtime_calls.h"
#include "abi.h"
#include "vector_clock.h"

namespace kernelsim {

constexpr int64_t most_transaction_bytes = (1 << 20) - 1;

// A bulk copy as it is asked for: its addresses and its size are multiples of a unit.
struct Bulk {
  char* to;
  const char* from;
  uint32_t size, unit;
};

// How a copy's elements are combined with those that are there; by default they replace them.
struct Combination {
  Combine operation = Combine::replace;
  Number type = Number::u32;
};

// A bulk copy into shared memory that has not arrived. Its data are those of its source when it was issued.
struct BulkCopy {
  char* to;
  std::vector<char> data;
  unsigned agent;  // the thread that issued it
  bool from_shared;  // it reads shared memory
  uint64_t pc;
  Combination how{};  // with what is there
};

struct Mbarrier {
  uint32_t expected;          // arrivals of each phase
  uint32_t pending;           // ... that are missing in this one
  int64_t bytes = 0;          // of transactions that are expected and have not completed
  uint64_t phase = 0;
  std::vector<BulkCopy> copies;
  std::vector<unsigned> waiting;  // threads
  VectorClock arriving, completed;      // what those that arrived knew: in this phase, and in all before it

  bool is_complete() const { return pending == 0 && bytes == 0; }
};

// Barriers that are no objects in memory have keys below any address: those of warpgroups, PTX's 16 barriers of a block,
// and the block's part of its cluster's.
constexpr uint64_t first_named_barrier = 64, named_barriers = 16, cluster_barrier = 128, least_address = 256;

// What a copy does where it arrives.
inline uint32_t access_of(const Combination& how) {
  return how.operation == Combine::replace ? access_write : access_read | access_write | access_atomic;
}
bool is_known(const Combination& how);  // whether PTX has such a reduction in global memory (reductions.cpp)
void put(char* to, const char* from, uint32_t size, const Combination& how);  // reductions.cpp

using Mbarriers = std::map<uint64_t, Mbarrier>;

// What a thread waits for: the end of the phase in which it got a token, or of the one with a parity.
struct PhaseWait {
  uint64_t address;
  uint64_t phase;
  bool by_parity;
  bool may_time_out;  // try_wait and test_wait may return before the phase ends
  uint64_t pc;

  bool is_over(const Mbarrier& barrier) const {
    return by_parity ? (barrier.phase & 1u) != (phase & 1u) : barrier.phase > phase;
  }
};

}  // namespace kernelsim
