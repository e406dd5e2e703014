// A block from its start to its end: its threads are fibers, which run until they must wait.

#include "scheduler.h"

#include <string.h>
#include <unistd.h>

#include <new>
#include <numeric>

#include "checker.h"

extern "C" {
__thread __attribute__((visibility("hidden"))) uint3 threadIdx;
__thread __attribute__((visibility("hidden"))) uint3 blockIdx;
__thread __attribute__((visibility("hidden"))) uint3 blockDim;
__thread __attribute__((visibility("hidden"))) uint3 gridDim;
__thread __attribute__((visibility("hidden"))) kernelsim::ClusterPlace kernelsim_cluster;
__thread __attribute__((visibility("hidden"), aligned(1024))) char
    kernelsim_dynamic_shared[kernelsim::most_shared_bytes];
// The kernel, in the text that Python appends to the source.
__attribute__((visibility("hidden"))) void kernelsim_kernel_entry(void** arguments);
}

namespace kernelsim {

constexpr unsigned polls_of_a_time_out = 64;

__thread Worker* worker_of_this_thread = nullptr;
Worker* only_worker = nullptr;
int64_t slot_in_attempt = 0;
Worker* worker_here() { return worker_of_this_thread; }

Worker::Worker(Launch& launch, Checker* checker, Cluster& cluster, unsigned number)
    : launch_(launch),
      checker_(checker),
      cluster_(cluster),
      number_(number),
      before_(worker_of_this_thread),
      thread_index_(&threadIdx),
      threads_(launch.threads_per_block),
      warps_((launch.threads_per_block + 31) / 32),
      warp_order_(warps_.size()),
      lane_order_(warps_.size() * 32) {
  const Request& request = launch.request;
  for (unsigned rank = 0; rank < threads_.size(); rank++) {
    threads_[rank].rank = rank;
    threads_[rank].index = {rank % request.block[0], rank / request.block[0] % request.block[1],
                            rank / (request.block[0] * request.block[1])};
  }
  std::iota(warp_order_.begin(), warp_order_.end(), 0u);
  for (size_t i = 0; i < lane_order_.size(); i++) lane_order_[i] = uint8_t(i % 32);
  worker_of_this_thread = this;
  if (slot_in_attempt) thread_slot(slot_in_attempt) = this;
  set_guards();
  blockDim = {request.block[0], request.block[1], request.block[2]};
  gridDim = {request.grid[0], request.grid[1], request.grid[2]};
  if (launch.is_cooperative()) {  // the kernel's own clusters have one block
    kernelsim_cluster.grid = gridDim;
    return;
  }
  kernelsim_cluster.dims = {request.cluster[0], request.cluster[1], request.cluster[2]};
  kernelsim_cluster.grid = {request.grid[0] / request.cluster[0], request.grid[1] / request.cluster[1],
                           request.grid[2] / request.cluster[2]};
  kernelsim_cluster.rank = number;
  kernelsim_cluster.size = launch.cluster_size;
}

Worker::~Worker() {
  worker_of_this_thread = before_;
  if (slot_in_attempt) thread_slot(slot_in_attempt) = nullptr;
  for (Fiber* fiber : all_) {
    launch_.request.give_stack(fiber->stack);
    delete fiber;
  }
}

// The place of an address in thread-local storage, as findings give it.
uint64_t Worker::shared_offset(uint64_t address) const {
  return address - storage_begin();
}

// The constructor of a variable in shared memory does not run: a GPU has none either.
void Worker::set_guards() {
  const Request& request = launch_.request;
  char* storage = reinterpret_cast<char*>(&threadIdx) - request.thread_index_offset;
  for (uint64_t i = 0; i < request.shared_count; i++) {
    const SharedVariable& variable = request.shared[i];
    if (variable.kind == uint32_t(StorageKind::guard)) memset(storage + variable.offset, 1, variable.size);
  }
}

void Worker::order_threads() {
  if (!launch_.request.permuted) return;
  const Request& request = launch_.request;
  const uint64_t block = blockIdx.x + request.grid[0] * (blockIdx.y + uint64_t(request.grid[1]) * blockIdx.z);
  random_ = request.seed ^ (block + 1) * 0x9e3779b97f4a7c15ull;
  shuffle_in_place(warp_order_.data(), warp_order_.size(), random_);
  for (size_t warp = 0; warp < warps_.size(); warp++) shuffle_in_place(&lane_order_[warp * 32], 32, random_);
}

unsigned Worker::lanes_of(unsigned warp) const {
  const unsigned lanes = std::min(32u, unsigned(threads_.size()) - warp * 32);
  return lanes == 32 ? 0xffffffffu : (1u << lanes) - 1u;
}

// Before any block of the cluster runs: others may arrive at this one's barriers before it starts.
void Worker::prepare_block() {
  abandoned_ = false;
  for (unsigned warp = 0; warp < warps_.size(); warp++) {
    const unsigned all = lanes_of(warp);
    warps_[warp] = {all, all, 0, 0, 0, 0, 0, 0, 0, 0};
  }
  arrived_.operation = Operation::none;
  mbarriers_.clear();
  polls_ = 0;
}

void Worker::run_block() {
  const Request& request = launch_.request;
  blockIdx = launch_.block_index(cluster_.unit(), number_);
  const dim3 cluster = kernelsim_cluster.dims;
  kernelsim_cluster.index = {blockIdx.x / cluster.x, blockIdx.y / cluster.y, blockIdx.z / cluster.z};
  kernelsim_cluster.block = {blockIdx.x % cluster.x, blockIdx.y % cluster.y, blockIdx.z % cluster.z};
  order_threads();
  while (!abandoned_ && !cluster_.is_abandoned()) {
    bool ran = false, alive = false, yielded = false;
    for (unsigned warp : warp_order_) {
      ran |= run_warp(warp);
      if (abandoned_) break;
    }
    if (abandoned_) break;
    for (Warp& warp : warps_) {
      alive |= warp.alive != 0;
      yielded |= warp.yielded != 0;
      warp.ready |= warp.yielded;
      warp.yielded = 0;
    }
    if (!alive) {
      if (checker_) checker_->block_ended();
      return;
    }
    // Threads that poll may poll for what another does once its wait has timed out.
    if (yielded && ++polls_ % polls_of_a_time_out == 0) cluster_.end_waits_that_may_time_out();
    if (!go_on(ran, yielded)) {
      cluster_.report_deadlock();
      break;
    }
  }
  launch_.any_block_abandoned.store(true, std::memory_order_relaxed);
  cluster_.abandon();
  drop_fibers();
}

// After each warp has run as far as it could. False: nothing can go on, in the whole cluster.
bool Worker::go_on(bool ran, bool yielded) {
  if (cluster_.size == 1) {
    return deliver_bulk_copies() || yielded || ran || release_barrier() || cluster_.time_out_waits();
  }
  if (yielded) cluster_.deliver_bulk_copies();
  if (yielded || ran || release_barrier()) {
    cluster_.progressed();
    if (yielded) cluster_.pass_turn(number_);  // it may be a thread of another block that they wait for
    return true;
  }
  if (!cluster_.has_stalled()) {
    cluster_.pass_turn(number_);
    return true;
  }
  if (!cluster_.go_on()) return false;
  cluster_.progressed();
  return true;
}

// Runs the warp's lanes until each has finished, waits or has yielded. Returns whether any of them ran.
bool Worker::run_warp(unsigned warp) {
  Warp& state = warps_[warp];
  running_warp_ = warp;
  bool ran = false;
  while (!abandoned_) {
    if (state.ready) {
      const unsigned lane = lane_of_next(state.ready, warp);
      state.ready &= ~(1u << lane);
      resume(threads_[warp * 32 + lane]);
    } else if (state.unstarted) {
      Fiber* fiber = take_fiber();
      if (!fiber) return ran;
      fiber_ = fiber;
      scheduler_.switch_to(fiber_->context);
    } else if (state.at_active) {
      release_active(state, warp * 32);
    } else {
      break;
    }
    ran = true;
  }
  return ran;
}

unsigned Worker::lane_of_next(unsigned lanes, unsigned warp) const {
  if (!launch_.request.permuted) return unsigned(__builtin_ctz(lanes));
  const uint8_t* order = &lane_order_[warp * 32];
  while (!(lanes >> *order & 1u)) order++;
  return *order;
}

// --- fibers ---

void Worker::fiber_main() {
  Worker& worker = *worker_of_this_thread;
  for (;;) {
    while (Thread* thread = worker.start_next()) {
      if (!worker.run_kernel()) worker.abandon_without_memory();
      worker.finish(*thread);
    }
    worker.idle_.push_back(worker.fiber_);
    worker.switch_to_next();
  }
}

// Whether there was enough memory: the checker may need more for an access.
bool Worker::run_kernel() {
  try {
    kernelsim_kernel_entry(launch_.request.arguments);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

Thread* Worker::start_next() {
  Warp& warp = warps_[running_warp_];
  if (!warp.unstarted) return nullptr;
  if ((++started_ & 255u) == 0 && launch_.past_deadline()) check_deadline(0);
  const unsigned lane = lane_of_next(warp.unstarted, running_warp_);
  warp.unstarted &= ~(1u << lane);
  Thread& thread = threads_[running_warp_ * 32 + lane];
  thread.fiber = fiber_;
  thread.returned_early = false;
  thread.committed = 0;
  thread.copies.clear();
  thread.tried_phases.clear();
  thread.cluster_phase = ~uint64_t(0);
  thread.awaits_cluster = false;
  enter(thread);
  return &thread;
}

void Worker::enter(Thread& thread) {
  current_ = &thread;
  fiber_ = thread.fiber;
  *thread_index_ = thread.index;
  if (checker_) checker_->running(agent(thread.rank), fiber_->stack);
}

void Worker::finish(Thread& thread) {
  const unsigned rank = thread.rank;
  Warp& warp = warp_of(rank);
  const unsigned bit = 1u << (rank % 32);
  if (!thread.copies.empty()) complete_copies(thread, thread.committed + 1);
  warp.alive &= ~bit;
  cluster_.note_event();
  if (!thread.returned_early) warp.fell_off |= bit;
  leave_cluster(thread);
  if (warp.at_warp) complete_all_in_warp(rank / 32);  // the others may wait only for this one
  if (checker_) checker_->progressed();
}

void Worker::resume(Thread& thread) {
  enter(thread);
  scheduler_.switch_to(fiber_->context);
}

// The running thread waits. The warp's next lane runs, the one that the scheduler would choose.
void Worker::switch_to_next() {
  Warp& warp = warps_[running_warp_];
  if (!warp.ready) return switch_to_scheduler();
  const unsigned lane = lane_of_next(warp.ready, running_warp_);
  warp.ready &= ~(1u << lane);
  Fiber& mine = *fiber_;
  enter(threads_[running_warp_ * 32 + lane]);
  mine.context.switch_to(fiber_->context);
}

void Worker::switch_to_scheduler() { fiber_->context.switch_to(scheduler_); }

// Null if there is no memory for another stack: the launch ends.
Fiber* Worker::take_fiber() {
  if (idle_.empty()) {
    char* stack = launch_.request.take_stack();
    if (!stack) {
      launch_.out_of_memory();
      abandoned_ = true;
      return nullptr;
    }
    auto* fiber = new Fiber;
    fiber->stack = stack;
    // Stacks lie a multiple of the page size apart. Without an offset of its own, the same place of each would compete
    // for the same few lines of the processor's cache.
    fiber->usable = stack_bytes - all_.size() % 32 * 128;
    fiber->context.prepare(fiber->stack, fiber->usable, &Worker::fiber_main);
    all_.push_back(fiber);
    return fiber;
  }
  Fiber* fiber = idle_.back();
  idle_.pop_back();
  return fiber;
}

// After an abandoned block every fiber begins anew; objects on their stacks have no destructors that must run.
void Worker::drop_fibers() {
  idle_ = all_;
  for (Fiber* fiber : all_) fiber->context.prepare(fiber->stack, fiber->usable, &Worker::fiber_main);
}

void Worker::abandon_without_memory() {
  launch_.out_of_memory();
  abandon();
}

// The launch is an attempt, and the running thread does what may depend on the order of blocks.
void Worker::refute_attempt() {
  launch_.refute_attempt();
  abandon();
}

void Worker::overflow(uint64_t pc) {
  Finding found = finding(FindingKind::stack_overflow);
  found.pc = pc;
  found.value = int64_t(stack_bytes);
  launch_.report(found);
  abandon();
}

bool Worker::is_guard_of_stack(uint64_t address) const {
  const uint64_t page = uint64_t(sysconf(_SC_PAGESIZE));
  return fiber_ && reinterpret_cast<uint64_t>(fiber_->stack) - address - 1 < page;
}

void Worker::abandon() {
  abandoned_ = true;
  switch_to_scheduler();
  __builtin_unreachable();
}

}  // namespace kernelsim
