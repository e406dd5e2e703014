// The checks of one OS thread's accesses in a checked launch: which bytes may be accessed, which contain a value, and
// whether accesses race. Accesses are checked inline as far as nothing is wrong.
#pragma once

#include <string.h>

#include <array>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "releases.h"
#include "scheduler.h"
#include "shadow.h"
#include "vector_clock.h"

namespace kernelsim {

#define KERNELSIM_INLINED inline __attribute__((always_inline))
#define KERNELSIM_RARE(condition) __builtin_expect(condition, 0)

constexpr uint64_t reserved_stack = 32 * 1024;

struct Module;

// Registers that a wgmma accumulates in, by their place on the thread's stack.
struct Accumulators {
  uint64_t begin, end;
  uint32_t group;
  bool in_flight, touched;  // touched: written since they were used, or fenced
  uint64_t touched_at, taken_at;
};

// The products of matrices that a thread takes part in.
struct Products {
  std::vector<Accumulators> accumulators;
  std::vector<uint32_t> groups;  // when each was committed
  bool ever_fenced = false;
};

// The last access of a thread, or of a unit that works for it, to the shared memory of another block.
struct Visit {
  uint64_t offset, pc;
  uint32_t size, what, time;
};

// A block of the cluster that runs.
struct BlockOfCluster {
  explicit BlockOfCluster(uint64_t storage_size);
  Worker* worker = nullptr;
  uint64_t storage_begin = 0;  // its OS thread's copy of the module's thread-local storage
  Shadow shared;
  std::vector<uint8_t> written;  // of each byte of that
  uint32_t ordered_since = 0;
  VectorClock common;  // what all its threads know
  VectorClock ended;   // what those that have ended knew
  std::unordered_map<uint16_t, Visit> visits;  // by agent
};

class Checker {
 public:
  explicit Checker(const Request& request);

  // A cluster, with blocks of so many threads.
  void begin_unit(const Cluster& cluster, unsigned threads);
  void enter_block(unsigned number);
  void running(unsigned agent, const char* stack) {
    me_ = agent_ = uint16_t(agent);
    last_update_ = nullptr;
    my_products_ = products_.empty() ? nullptr : &products_[agent];
    my_warp_joined_ = warp_joined_[agent / 32];
    stack_begin_ = reinterpret_cast<uint64_t>(stack);
  }
  void barrier_passed();
  void lanes_joined(unsigned first, unsigned lanes);  // of the warp with this first thread
  void fenced(bool acquires, bool releases);
  void access(uint64_t address, uint32_t size, uint32_t what, uint64_t pc);
  // An atomic write or update, usual as well: of shared memory, while no thread has released anything through an atomic.
  template <uint32_t size>
  bool atomic_at_once(uint64_t address, uint32_t what, uint64_t pc);
  void atomic_begins() { last_update_ = nullptr; }
  // The running thread does not use the result of its last update.
  void result_unused() {
    if (last_update_) last_update_->access |= access_unseen;
  }
  void read_only_load(uint64_t address, uint32_t size, uint64_t pc);
  // The same for the access that is usual: to one whole cell, to bytes that contain a value, and in order or a mere read.
  // False: the access has to be examined further, and nothing was done.
  template <uint32_t size, uint32_t what>
  KERNELSIM_INLINED bool access_at_once(uint64_t address, uint64_t pc);
  void copy_begins(const char* to, const char* from, uint32_t size, uint32_t from_size, uint64_t pc);
  void copy_ends(const char* to, uint32_t size, uint64_t pc);

  // Objects in shared memory on which threads arrive and wait, and those that work asynchronously (agents.cpp).
  void object_access(uint64_t address, uint32_t what, uint64_t pc);
  void object_ends(uint64_t address);
  // The clock gets all that the running thread knows and did.
  void release_to(VectorClock& clock);
  void acquire(unsigned agent, const VectorClock& clock);

  // Clusters (cluster_checks.cpp)
  // The same as release_to, but what came after the thread's last fence is not released.
  void release_fenced_to(VectorClock& clock);
  void fenced_for_cluster() { cluster_fences_[me_] = ++time_; }
  void arrives_elsewhere(uint64_t address, uint64_t pc);
  void thread_ended() { release_to(here_->ended); }
  void block_ended();
  void check_units(const Bulk& bulk, uint64_t pc);
  void bulk_load_reads(const char* from, uint32_t size, uint64_t pc);
  void bulk_load_takes(const BulkCopy& copy);
  void bulk_load_ends(const BulkCopy& copy, VectorClock& clock);
  void bulk_store_reads(const char* from, uint32_t size, uint64_t pc);  // of shared memory
  void bulk_store_writes(const char* to, uint32_t size, uint32_t what, uint64_t pc);
  void commit_bulk_stores() { bulk_groups_of(me_).push_back(++time_); }
  // All but the last groups of the running thread; with `only_reads`, these may still be writing.
  void wait_for_bulk_stores(uint32_t groups, bool only_reads);
  // wgmma (accumulators.cpp)
  void accumulators_taken(void* const* registers, unsigned count, uint64_t pc);
  void accumulators_fenced();
  void commit_products();
  void wait_for_products(uint32_t groups);
  void tensor_cores_read(const char* piece, uint32_t size, uint64_t pc);
  // What the running thread wrote before is visible to units that work asynchronously.
  void fence_proxy() { proxy_fences_[me_] = ++time_; }
  void fault(FindingKind kind, uint64_t pc, uint64_t address, int64_t value, const char* text);
  KERNELSIM_INLINED void block_entered(uint64_t pc) {  // every basic block of the kernel
    if (KERNELSIM_RARE(--fuel_ == 0)) ran_for_long(pc);
  }
  void progressed() { spins_ = 0; }
  // A function that begins with little of the stack left would run out of it in the runtime, with locks held.
  void function_entered(uint64_t pc, const void* frame) {
    if (!worker_ || !on_own_stack(reinterpret_cast<uint64_t>(frame))) return;
    if (reinterpret_cast<uint64_t>(frame) - stack_begin_ < reserved_stack) worker_->overflow(relative(pc));
  }
  bool on_own_stack(uint64_t address) const { return address - stack_begin_ < stack_bytes; }
  uint64_t relative(uint64_t pc) const { return pc - module_base_; }
  // Whether what the blocks do may depend on their order: one used an atomic or volatile access, or a fence.
  bool order_matters() const { return order_matters_; }
  // Whether none of the launch's blocks accessed what another checker's blocks wrote.
  static bool are_independent(const std::vector<Checker*>& checkers);

 private:
  Checker(const Request& request, const Module& module);
  void begin_block(unsigned number, Worker& worker);
  struct Range {
    Region region;
    Shadow shadow;
    uint64_t length;
    bool plain;  // every byte may be accessed and contains a value
    bool freely_written;  // plain, and every byte may be written
  };

  void shared_access(uint64_t offset, uint32_t size, uint32_t what, uint64_t pc);
  void global_access(Range& range, uint64_t offset, uint32_t size, uint32_t what, uint64_t pc);
  template <Space space, uint32_t size, uint32_t what>
  KERNELSIM_INLINED bool record_at_once(Shadow& shadow, uint64_t offset, uint64_t pc);
  template <Space space>
  KERNELSIM_INLINED bool is_simply_ordered(const Record& earlier) const;
  void record_shared(uint64_t offset, uint32_t size, uint32_t what, uint64_t pc);
  bool examine_shared(uint64_t offset, uint32_t size, uint32_t what, uint64_t pc);
  bool examine_global(Range& range, uint64_t offset, uint32_t size, uint32_t what, uint64_t pc);
  Range& range_of(uint64_t address, uint32_t size, uint32_t what, uint64_t pc);
  template <Space space>
  void record(Shadow& shadow, uint64_t offset, uint32_t size, uint32_t what, uint64_t pc, uint64_t address);
  template <Space space>
  void record_cell(Shadow& shadow, uint64_t cell, uint8_t bytes, uint32_t size, uint32_t what, uint64_t pc,
                   uint64_t address);
  template <Space space>
  bool is_ordered(const Record& earlier) const;
  template <Space space>
  bool may_race_with_atomics(const Record& earlier) const;
  void keep_update_of_other(Shadow& shadow, uint64_t cell);
  bool is_ordered_in_block(uint16_t agent, uint32_t time) const;
  bool is_ordered_through_atomics(const Record& earlier) const;
  bool covers(const Release& release, const Record& earlier) const;
  static constexpr int most_links = 4;  // from one object of atomics to another
  bool reaches(const SyncObject& object, uint32_t count, const Record& earlier, int depth) const;
  void synchronise(const Location& at, uint32_t what);
  void release_at(const Location& at, const LastFence& fence);
  void note_read(const Acquired& now);
  void acquire_what_was_read();
  bool acquire(const Acquired& now);
  bool is_known_to_me_only(uint32_t time) const;
  void needs_order();
  uint32_t seen(unsigned thread, unsigned lane) const;
  uint32_t knows(unsigned thread, unsigned agent) const {
    return std::max(here_->common.at(agent), known_.empty() ? 0 : known_[thread].at(agent));
  }
  void share_knowledge();
  void share_knowledge(unsigned warp, unsigned lanes);
  // Until it ends, accesses are those of an agent that works for a thread.
  class As {
   public:
    As(Checker& checker, unsigned kind, unsigned thread) : checker_(checker), me_(checker.me_) {
      checker.me_ = uint16_t(thread);
      checker.agent_ = uint16_t(unit_of(kind, thread));
      checker.issuers_[checker.agent_] = uint16_t(thread);
    }
    ~As() { checker_.me_ = checker_.agent_ = me_; }

   private:
    Checker& checker_;
    const uint16_t me_;
  };
  std::vector<uint32_t>& bulk_groups_of(unsigned thread) {
    if (bulk_groups_.empty()) bulk_groups_.resize(fenced_.size());
    return bulk_groups_[thread];
  }
  // What works asynchronously for a thread's warp.
  static unsigned unit_of(unsigned kind, unsigned thread) {
    return first_of_block(thread) + kind + thread % most_agents / 32;
  }
  void knows_of(unsigned agent, uint32_t time);

  // Until it ends, shared memory is that of another block.
  class Elsewhere {
   public:
    Elsewhere(Checker& checker, BlockOfCluster& block) : checker_(checker) { checker.look_at(block); }
    ~Elsewhere() { checker_.look_at(*checker_.here_); }

   private:
    Checker& checker_;
  };
  void look_at(BlockOfCluster& block) {
    at_ = &block;
    storage_begin_ = block.storage_begin;
    shared_ = &block.shared;
    shared_written_ = block.written.data();
  }
  // The block of the cluster that runs, in whose shared memory an address is; null if it is in none.
  BlockOfCluster* block_with(uint64_t address);
  void visit(BlockOfCluster& block, const Visit& now, bool is_kept);
  bool knows_start_of(const BlockOfCluster& block) const;
  void report_visit(const BlockOfCluster& block, const Visit& visit, unsigned agent, const char* what);
  Products& products();
  void local_access(uint64_t address, uint32_t size, uint32_t what, uint64_t pc);
  void report_accumulator(FindingKind kind, uint64_t address, uint64_t pc, uint64_t other_pc, const char* what);
  bool lacks_proxy_fence(const Record& written) const;
  uint16_t thread_of(uint16_t agent) const { return is_thread(agent) ? agent : issuers_[agent]; }
  uint32_t unit_at(uint32_t time) const;
  void ran_for_long(uint64_t pc);
  template <Space space>
  void report_race(const Record& clash, uint64_t address, uint32_t size, uint32_t what, uint64_t pc,
                   const char* why = "");
  Finding memory_finding(FindingKind kind, Space space, uint64_t address, uint32_t size, uint32_t what,
                         uint64_t pc) const;
  [[noreturn]] void out_of_bounds(Space space, uint64_t address, uint32_t size, uint32_t what, uint64_t pc);
  void uninitialised(const uint8_t* written, Space space, uint64_t address, uint32_t size, uint32_t what, uint64_t pc);
  bool lacks_values(const uint8_t* written, uint64_t begin, uint32_t size) const;
  bool has_partial_element(const Region& region, uint64_t offset, uint32_t size) const;

  // By object: how many of its releases were searched, for each number of links that were left.
  mutable std::unordered_map<const SyncObject*, std::array<uint32_t, most_links + 1>> searched_;
  const Request& request_;
  Worker* worker_ = nullptr;
  uint64_t stack_begin_ = 0;
  // The block whose thread runs, and the one whose shared memory is looked at: nearly always the same.
  BlockOfCluster* here_ = nullptr;
  BlockOfCluster* at_ = nullptr;
  std::vector<std::unique_ptr<BlockOfCluster>> members_;
  unsigned threads_ = 0;  // of a block
  bool is_cluster_ = false;  // of several blocks
  uint64_t storage_begin_ = 0, storage_size_;  // the looked at block's copy of the module's thread-local storage
  uint64_t module_base_;
  // Times of the running block: its begin, and the one before which all of its accesses are ordered.
  uint32_t time_ = 1, block_time_ = 0, ordered_since_ = 0;
  uint32_t fuel_ = 1, spins_ = 0;
  uint32_t my_warp_joined_ = 0;
  uint16_t me_ = 0;
  uint16_t agent_ = 0;       // who accesses memory for this thread: usually itself
  bool finds_races_ = true;  // not while a copy arrives that was examined when it was issued
  bool is_simple_ = true;  // no lanes have joined but whole warps, and no thread has acquired anything: see is_ordered
  bool order_matters_ = false;
  Record* last_update_ = nullptr;  // of the running thread; null: it was to its own stack
  Shadow* shared_ = nullptr;
  enum : uint8_t { no_value, value, built_in };  // of a byte of shared memory; threadIdx and its like have one always
  uint8_t* shared_written_ = nullptr;
  std::vector<uint16_t> owner_;  // of each byte of the storage: 0 for none, else the variable's number plus one
  std::vector<Range> ranges_;
  Range* by_place_[64] = {};                                   // the last range that was accessed near a place in the code
  std::vector<std::pair<uint32_t, uint32_t>> units_;  // the time at which each cluster began, and its number plus one
  std::vector<uint32_t> warp_joined_;  // when all lanes of a warp last synchronised
  std::vector<uint32_t> seen_;  // [thread][lane]: when this thread last synchronised with that lane; empty: never alone
  std::vector<LastFence> fenced_;  // by thread
  std::unordered_map<uint32_t, Fences> fences_;  // by cluster
  std::unordered_map<Location, std::unique_ptr<SyncObject>, HashOfLocation> objects_;
  std::vector<Acquired> read_;  // by relaxed reads of this cluster's threads: acquired at a fence
  std::unordered_map<uint32_t, std::vector<Acquired>> logs_;  // by cluster: all that its threads have acquired, in order
  std::vector<Acquired> acquired_;  // what counts of that in this block
  std::unordered_map<uint64_t, uint32_t> acquired_at_;  // the last place there of an object and a thread
  std::vector<VectorClock> known_;  // by thread; empty: no thread has waited at an object
  std::vector<std::vector<uint32_t>> bulk_groups_;  // by thread: when each group of its bulk stores was committed
  std::vector<Products> products_;  // by thread; empty: none of them has used wgmma
  Products* my_products_ = nullptr;
  std::vector<uint32_t> proxy_fences_;              // by thread: its last fence.proxy.async
  std::vector<uint32_t> cluster_fences_;            // by thread: its last fence that other blocks can see
  uint16_t issuers_[most_members * most_agents] = {};  // the last thread that each agent worked for
};

// The checker of a launch that runs on one OS thread; null if there is none, or if there are several.
extern Checker* only_checker;
KERNELSIM_INLINED Checker* running_checker() {
  if (Checker* checker = only_checker) return checker;
  if (!slot_in_attempt) return nullptr;
  const Worker* worker = worker_in_slot();
  return worker ? worker->checker() : nullptr;
}

// --- the checks of an access ---

// Whether each of some bytes is as wanted. Of other sizes than these, false.
KERNELSIM_INLINED bool all_are(uint8_t wanted, const uint8_t* bytes, uint32_t size) {
  const uint64_t eight = wanted * 0x0101010101010101ull;
  const auto equal = [bytes](unsigned at, auto eight) {
    auto there = eight;
    memcpy(&there, bytes + at, sizeof there);
    return there == eight;
  };
  switch (size) {
    case 1: return *bytes == wanted;
    case 2: return equal(0, uint16_t(eight));
    case 4: return equal(0, uint32_t(eight));
    case 8: return equal(0, eight);
    case 16: return equal(0, eight) && equal(8, eight);
    default: return false;
  }
}

template <uint32_t size, uint32_t what>
KERNELSIM_INLINED bool Checker::access_at_once(uint64_t address, uint64_t pc) {
  if (on_own_stack(address)) return !KERNELSIM_RARE(my_products_ != nullptr);
  if (KERNELSIM_RARE(!is_simple_)) return false;
  uint64_t offset = address - storage_begin_;
  if (offset < storage_size_) {
    // Bytes that contain a value are all of one variable: between two there are some that never do.
    const uint8_t* written = &shared_written_[offset];
    if (KERNELSIM_RARE(!all_are(value, written, size))) return what == access_read && all_are(built_in, written, size);
    return record_at_once<Space::shared, size, what>(*shared_, offset, pc);
  }
  Range* range = by_place_[pc / 4 % 64];
  if (KERNELSIM_RARE(!range)) return false;
  offset = address - range->region.begin;
  if (KERNELSIM_RARE(offset >= range->length || offset + size > range->length)) return false;
  if (KERNELSIM_RARE(!(what & access_write ? range->freely_written : range->plain))) return false;
  return record_at_once<Space::global, size, what>(range->shadow, offset, pc);
}

template <Space space, uint32_t size, uint32_t what>
KERNELSIM_INLINED bool Checker::record_at_once(Shadow& shadow, uint64_t offset, uint64_t pc) {
  if (KERNELSIM_RARE(!shadow.fits_one(offset, size))) return false;
  const uint64_t cell = offset / size;
  const Record mine{time_, uint32_t(pc - module_base_), me_, whole_cell, uint8_t(what)};
  if (shadow.any_write) {
    const Record& written = shadow.write(cell);
    if (KERNELSIM_RARE(!is_simply_ordered<space>(written))) return false;
    const bool may_hide = space == Space::global || written.time >= ordered_since_;
    if (shadow.any_other_update && KERNELSIM_RARE(is_atomic(written.access) && may_hide)) return false;
  }
  if (what == access_write) {
    if (KERNELSIM_RARE(!shadow.any_write)) return false;
    if (shadow.any_read && KERNELSIM_RARE(!is_simply_ordered<space>(shadow.read(cell)))) return false;
    if (shadow.any_other_read && KERNELSIM_RARE(!is_simply_ordered<space>(shadow.other_read(cell)))) return false;
    shadow.write(cell) = mine;
  } else {
    if (KERNELSIM_RARE(!shadow.any_read)) return false;
    Record& first = shadow.read(cell);
    if (is_simply_ordered<space>(first)) {
      first = mine;
    } else {
      shadow.any_other_read = true;
      shadow.other_read(cell) = mine;
    }
  }
  return true;
}

template <uint32_t size>
inline bool Checker::atomic_at_once(uint64_t address, uint32_t what, uint64_t pc) {
  const uint64_t offset = address - storage_begin_;
  if (offset >= storage_size_ || !(what & access_write) || !is_simple_ || !objects_.empty()) return false;
  if (fenced_[me_].time || (what & access_releases)) return false;
  Shadow& shadow = *shared_;
  if (!all_are(value, &shared_written_[offset], size) || !shadow.fits_one(offset, size) || !shadow.any_write) return false;
  const auto cannot_race = [this](const Record& earlier) {
    return is_atomic(earlier.access) || is_simply_ordered<Space::shared>(earlier);
  };
  const uint64_t cell = offset / size;
  Record& written = shadow.write(cell);
  if (!is_atomic(written.access) && written.time >= ordered_since_) return false;  // it must not be hidden
  if (shadow.any_plain && !cannot_race(shadow.plain(cell))) return false;
  if (shadow.any_read && !cannot_race(shadow.read(cell))) return false;
  if (shadow.any_other_read && !cannot_race(shadow.other_read(cell))) return false;
  if (written.thread != me_ && written.time >= ordered_since_) {
    shadow.any_other_update = true;
    shadow.other_update(cell) = written;
  }
  written = {time_, uint32_t(pc - module_base_), me_, whole_cell, uint8_t(what)};
  last_update_ = &written;
  return true;
}

// The same as is_ordered, if is_simple_.
template <Space space>
KERNELSIM_INLINED bool Checker::is_simply_ordered(const Record& earlier) const {
  if (space == Space::global) {
    if (!earlier.time) return true;
    if (earlier.time < block_time_) return false;
  }
  if (earlier.time < ordered_since_ || earlier.thread == me_) return true;
  return (earlier.thread ^ me_) < 32 && earlier.time < my_warp_joined_;
}

}  // namespace kernelsim
