// One block at a time on one OS thread: its CUDA threads are fibers that run until they must wait.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#define KERNELSIM_RUNTIME
#include "../include/kernelsim/runtime_calls.h"
#include "abi.h"
#include "cluster.h"
#include "context.h"
#include "mbarrier.h"
#include "thread_slot.h"

namespace kernelsim {

struct Fiber {
  Context context;
  char* stack;      // its lowest byte
  uint64_t usable;  // bytes
};

class Checker;
struct TensorMap;
struct WarpgroupProduct;

enum class Operation : uint8_t { none, barrier, sync, ballot, shuffle, wide_shuffle, gather, collective, active_mask, phase };

// What a waiting thread waits for, and its values. What most operations need comes first.
struct Wait {
  Operation operation;
  bool predicate;
  BarrierKind kind;
  unsigned mask;
  unsigned source, answer;
  Site site;
  uint64_t wide;  // a value of up to 8 bytes, and then the result
  const void* value;
  void* result;
  unsigned size;
  uint64_t* gathered;
  void (*compute)(void* const* lanes);
  PhaseWait phase;
};

// An asynchronous copy that its thread has not waited for.
struct AsyncCopy {
  char* to;
  unsigned size, group;
  uint64_t pc;
  char data[16];
};

struct alignas(64) Thread {  // what each switch needs is in one line of the processor's cache
  uint3 index;
  unsigned rank;
  Fiber* fiber;
  Wait wait;
  bool returned_early;
  unsigned committed;  // groups of asynchronous copies
  uint64_t cluster_phase;  // in which it last arrived at the cluster's barrier
  bool awaits_cluster;     // it has arrived there, and has not waited yet
  std::vector<AsyncCopy> copies;
  std::vector<std::pair<uint64_t, uint64_t>> tried_phases;  // of mbarriers, the last that it tried to wait for
};

// How a thread arrives at an mbarrier.
struct Arrival {
  uint32_t count = 1;
  int64_t expected_bytes = 0;  // of transactions, before the arrival
  bool releases = true;        // what the thread did before is visible to those that wait
  bool drops = false;          // it takes no part in later phases
};

// One bit for each lane. A lane that is alive is in exactly one of the others, or running.
struct Warp {
  unsigned alive, unstarted, ready, yielded, at_barrier, at_warp, at_active, at_mbarrier;
  unsigned fell_off;      // finished by reaching the kernel's end
  unsigned reported_off;  // ... and some barrier's finding has reported it
};

using Clock = std::chrono::steady_clock;

// The size of the thread-local storage of the kernel's module.
uint64_t size_of_storage();

// What a variable in shared memory contains before it is written. Every bit set, which is NaN in each floating type and
// minus one as an integer; zeros; and numbers of both signs, other ones at each place.
enum class Unwritten : uint32_t { ones, zeros, numbers };

// The state that all workers of one launch share.
class Launch {
 public:
  explicit Launch(Request& request);
  // Records a finding, unless there is one of its kind at the same place, or there are too many.
  void report(const Finding& finding);
  bool past_deadline() const { return limited_ && Clock::now() > deadline(); }
  void stop() { stopped_.store(true, std::memory_order_relaxed); }
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }
  // A unit of work is a cluster: usually one block.
  bool next_unit(uint64_t& unit);
  uint64_t units_left() const { return units - std::min(units, next_.load(std::memory_order_relaxed)); }
  // The place in the grid of a cluster's block.
  uint3 block_index(uint64_t unit, unsigned member) const;
  // Ends the launch; Python raises an error.
  void out_of_memory();
  bool limited() const { return limited_; }
  bool is_cooperative() const { return request.cooperative != 0; }
  Clock::time_point deadline() const { return deadline_.load(std::memory_order_relaxed); }

  // An attempt to run the blocks that are left on several OS threads. It is refuted by whatever could depend on their
  // order, findings included; then they run again one after another, as if there had been no attempt.
  void begin_attempt();
  void refute_attempt();
  bool end_attempt();  // whether it was not refuted
  bool is_attempt() const { return attempt_.load(std::memory_order_relaxed); }
  void repeat_blocks();

  // Runs all again, with other values in shared memory that is not written, and without suspicions (suspicions.h).
  void begin_repeat(Unwritten with);
  Unwritten unwritten() const { return unwritten_; }
  bool is_kernel_code(uint64_t pc) const;
  uint64_t relative(uint64_t pc) const { return pc - module_base_; }

  Request& request;
  const unsigned cluster_size;
  const uint64_t units;
  const unsigned threads_per_block;
  const uint64_t storage_size;  // of the thread-local storage of the kernel's module
  std::atomic<bool> any_block_abandoned{false};

 private:
  std::mutex mutex_;
  std::atomic<bool> stopped_{false};
  std::atomic<uint64_t> next_{0};
  std::atomic<bool> attempt_{false}, refuted_{false};
  uint64_t first_of_attempt_ = 0;
  uint64_t stride_ = 1, offset_ = 0;
  Unwritten unwritten_ = Unwritten::ones;
  uint64_t module_base_;
  bool limited_;
  Clock::duration limit_;
  std::atomic<Clock::time_point> deadline_;  // may move while the watchdog starts
};

// When the time is up, stops threads that never check the clock, such as those in an empty loop.
class Watchdog {
 public:
  explicit Watchdog(const Launch& launch);
  ~Watchdog();
  void watch(pthread_t thread);
  void forget(pthread_t thread);

 private:
  void run();

  const Launch& launch_;
  std::mutex mutex_;
  std::condition_variable done_changed_;
  bool done_ = false;
  std::vector<pthread_t> watched_;
  std::thread thread_;
};

// The stack on which this OS thread handles a fault: the thread's own is full then.
class FaultStack {
 public:
  FaultStack();
  ~FaultStack();

 private:
  std::vector<char> memory_;
  stack_t before_{};
};

class Worker {
 public:
  // Runs the blocks with a number in their clusters. `checker`: of a checked launch, else null.
  Worker(Launch& launch, Checker* checker, Cluster& cluster, unsigned number);
  ~Worker();
  // The block of the cluster that runs.
  void prepare_block();
  void run_block();

  unsigned barrier(BarrierKind kind, bool predicate, Site site);
  // The wait of the running thread, of which the caller sets what this operation needs besides.
  Wait& warp_operation(Operation operation, unsigned mask, Site site);
  unsigned wait_in_warp();
  unsigned active_mask(Site site);
  void yield(uint64_t pc);
  void note_atomic(uint64_t pc);
  void copy_async(char* to, const char* from, unsigned size, unsigned from_size, uint64_t pc);
  void commit_copies() { current_->committed++; }
  // Completes the copies of all groups but the last ones; with `open`, also those that are in no group yet.
  void wait_for_copies(unsigned groups, bool open);
  bool is_being_copied(uint64_t address, uint64_t size) const;

  // mbarriers (mbarrier.cpp)
  void mbarrier_init(uint64_t address, uint32_t count, uint64_t pc);
  void mbarrier_inval(uint64_t address, uint64_t pc);
  uint64_t mbarrier_arrive(uint64_t address, const Arrival& arrival, uint64_t pc);
  void mbarrier_transaction(uint64_t address, int64_t bytes, uint64_t pc);
  bool mbarrier_wait(const PhaseWait& wait);
  void bulk_load(const Bulk& bulk, uint64_t mbarrier, uint64_t pc);
  void send(BulkCopy copy, uint64_t mbarrier);
  void send_to(uint32_t blocks, const BulkCopy& copy, uint64_t mbarrier);

  // Bulk copies to global memory, and of boxes of a tensor (bulk.cpp)
  void bulk_store(const Bulk& bulk, const Combination& how, uint64_t pc);
  void tensor_load(char* to, const void* map, const BoxAt& box, uint64_t mbarrier, uint32_t blocks, uint64_t pc);
  void tensor_store(const void* map, const BoxAt& box, const char* from, Combine operation, uint64_t pc);
  void returned_early() { current_->returned_early = true; }
  unsigned rank() const { return current_->rank; }
  Checker* checker() const { return checker_; }
  Launch& launch() { return launch_; }
  const Launch& launch() const { return launch_; }
  const Cluster& cluster() const { return cluster_; }
  unsigned number() const { return number_; }
  // By which the checker knows a thread of this block.
  unsigned agent(unsigned rank) const { return number_ * most_agents + rank; }
  uint64_t storage_begin() const {
    return reinterpret_cast<uint64_t>(thread_index_) - launch_.request.thread_index_offset;
  }

  // Begins a finding about the running thread.
  Finding finding(FindingKind kind) const;
  void describe(uint64_t unit, unsigned agent, uint32_t out_block[3], uint32_t out_thread[3]) const;
  void describe(unsigned rank, uint32_t out_block[3], uint32_t out_thread[3]) const {
    describe(cluster_.unit(), agent(rank), out_block, out_thread);
  }
  // The block cannot continue: its fibers are abandoned.
  [[noreturn]] void abandon();
  [[noreturn]] void abandon_without_memory();
  [[noreturn]] void refute_attempt();
  // The running thread's stack is full.
  [[noreturn]] void overflow(uint64_t pc);
  // Barriers of some threads (named_barriers.cpp)
  void named_barrier(uint32_t number, uint32_t threads, bool waits, Site site, uint64_t pc);

  // From shared memory to that of another block (cluster_copies.cpp)
  void bulk_send(const Bulk& bulk, const Combination& how, uint64_t mbarrier, uint64_t pc);
  void bulk_multicast(const Bulk& bulk, uint64_t mbarrier, uint32_t blocks, uint64_t pc);
  void store_async(char* to, const char* value, uint32_t size, const Combination& how, uint64_t mbarrier, uint64_t pc);

  // Clusters (cluster_calls.cpp)
  void cluster_arrive(bool releases, uint64_t pc);
  void cluster_wait(uint64_t pc);
  // What only the barriers of a cluster may do: the block ends if the blocks that run together are a grid.
  void refuse_in_grid(uint64_t pc);
  void cluster_phase_completed(const VectorClock& known);
  void report_late_in_cluster(const Cluster::Arrival& waiting);
  void declare_cluster(uint32_t x, uint32_t y, uint32_t z);
  // The same place in the shared memory of another block; `rank` counts blocks of the cluster.
  uint64_t in_block(uint64_t address, uint32_t rank, uint64_t pc);
  // Whose shared memory a finding is about, if it is another block's.
  void set_owner(Finding& found, const Worker& owner) const;
  // What is wrong with how blocks of a cluster meet: the block ends.
  [[noreturn]] void report_cluster(FindingKind kind, uint64_t pc, const char* what);

  // For the cluster
  bool deliver_bulk_copies();
  bool end_waits_that_may_time_out();
  bool fails_at_first(uint64_t address, uint64_t phase);
  void report_deadlock();

  // wgmma (warpgroup.cpp)
  void warpgroup_multiply(WarpgroupProduct& mine, Site site);
  void meet_in_warpgroup(uint64_t pc);
  // The running thread did what a GPU would not go on from.
  [[noreturn]] void report_trap(uint64_t pc, const char* what);
  [[noreturn]] void refuse_descriptor(uint64_t pc);
  char* shared_at(uint64_t low_bits, uint64_t pc);
  // Memory for a while; fibers may be abandoned, so none of them owns it.
  void* scratch(uint64_t bytes) {
    scratch_.resize(std::max<uint64_t>(scratch_.size(), (bytes + 7) / 8));
    return scratch_.data();
  }
  bool is_guard_of_stack(uint64_t address) const;
  void check_deadline(uint64_t pc);

  static void fiber_main();

 private:
  void order_threads();
  bool run_warp(unsigned warp);
  bool go_on(bool ran, bool yielded);
  Mbarrier& mbarrier_at(uint64_t address, uint32_t access, uint64_t pc);
  const TensorMap& tensor_map_at(const void* address, uint32_t rank, const char* tile, uint64_t pc);
  Mbarrier& barrier_of(uint64_t key, uint32_t threads, uint64_t pc);
  uint64_t arrive_at(Mbarrier& barrier);
  void await_phase(Mbarrier& barrier, const PhaseWait& phase);
  void describe_wait(Finding& found, uint64_t key, const Mbarrier& barrier) const;
  bool wait_for_phase(Mbarrier& barrier, const PhaseWait& phase);
  void complete_phase(Mbarrier& barrier);
  void wake_waiting(Mbarrier& barrier);
  void deliver(Mbarrier& barrier);
  Worker& owner_of(uint64_t address);
  void leave_cluster(const Thread& thread);
  unsigned lanes_of(unsigned warp) const;  // that there are
  Mbarrier& cluster_meeting();
  [[noreturn]] void report_mbarrier(uint64_t address, uint64_t pc, const char* what);
  uint64_t shared_offset(uint64_t address) const;
  bool report_endless_waits();
  bool release_barrier();
  void report_late_threads(const Thread& waiting);
  bool release_active(Warp& warp, unsigned first_thread);
  bool complete_in_warp(unsigned warp, const Wait& wait);
  void complete_all_in_warp(unsigned warp);
  void exchange(unsigned warp, unsigned lanes, const Wait& wait);
  void exchange_values(unsigned warp, unsigned lanes, const Wait& wait);
  void report_deaf_lanes(unsigned warp, unsigned deaf, const Wait& wait);
  void report_unheard_lanes(unsigned warp, const Wait& wait);
  unsigned lane_of_next(unsigned lanes, unsigned warp) const;
  Thread* start_next();
  bool run_kernel();
  void finish(Thread& thread);
  void complete_copies(Thread& thread, unsigned before);
  void resume(Thread& thread);
  void enter(Thread& thread);
  void switch_to_next();
  void switch_to_scheduler();
  Fiber* take_fiber();
  void drop_fibers();
  void set_guards();
  Warp& warp_of(unsigned rank) { return warps_[rank / 32]; }

  Launch& launch_;
  Checker* const checker_;
  Cluster& cluster_;
  const unsigned number_;
  Worker* const before_;  // of this OS thread
  uint3* const thread_index_;  // threadIdx of this OS thread
  Context scheduler_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned> warp_order_;
  std::vector<uint8_t> lane_order_;  // of each warp
  std::vector<Fiber*> idle_, all_;
  Thread* current_ = nullptr;
  Fiber* fiber_ = nullptr;
  unsigned running_warp_ = 0;
  uint64_t random_ = 0;
  bool abandoned_ = false;
  unsigned atomics_ = 0, started_ = 0;
  std::vector<uint64_t> scratch_;
  Mbarriers mbarriers_;  // of the running block, by address
  unsigned polls_ = 0;
  // Of the threads that wait at the block's barrier: the place of the first that came, and whether all are there.
  Wait arrived_{};
  bool same_barrier_ = true;
  unsigned came_ = 0, agreed_ = 0;
};

Worker* worker_here();
// The worker of a checked launch that runs on one OS thread. Of one that runs on several, each has its own in its slot.
extern Worker* only_worker;
extern int64_t slot_in_attempt;  // 0: no checked launch runs on several OS threads
inline Worker* worker_in_slot() { return static_cast<Worker*>(thread_slot(slot_in_attempt)); }
inline Worker* current_worker() { return only_worker ? only_worker : slot_in_attempt ? worker_in_slot() : worker_here(); }

inline uint64_t next_random(uint64_t& state) {  // splitmix64
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

template <class T>
void shuffle_in_place(T* items, uint64_t count, uint64_t& random) {
  for (uint64_t i = count; i > 1; i--) std::swap(items[i - 1], items[next_random(random) % i]);
}

}  // namespace kernelsim
