// Launches: blocks on OS threads, a block's threads on fibers, and the barriers between these.

#include "scheduler.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>

#include "checker.h"

extern "C" {
__thread __attribute__((visibility("hidden"))) uint3 threadIdx;
__thread __attribute__((visibility("hidden"))) uint3 blockIdx;
__thread __attribute__((visibility("hidden"))) dim3 blockDim;
__thread __attribute__((visibility("hidden"))) dim3 gridDim;
__thread __attribute__((visibility("hidden"), aligned(1024))) char
    opwright_dynamic_shared[opwright_sim::most_shared_bytes];
// The kernel, in the text that Python appends to the source.
__attribute__((visibility("hidden"))) void opwright_kernel_entry(void** arguments);
uint64_t opwright_sim_module_base();
}

namespace opwright_sim {

namespace {

__thread Worker* worker_of_this_thread = nullptr;

uint64_t next_random(uint64_t& state) {  // splitmix64
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

template <class T>
void shuffle_in_place(T* items, uint64_t count, uint64_t& random) {
  for (uint64_t i = count; i > 1; i--) std::swap(items[i - 1], items[next_random(random) % i]);
}

bool same_line(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

// Stacks outlive launches: making one takes two system calls, and touching it some page faults.
std::mutex stacks_mutex;
std::vector<char*>& free_stacks() {
  static auto* stacks = new std::vector<char*>;  // never destroyed: threads may end after static objects
  return *stacks;
}

char* take_stack() {
  {
    const std::lock_guard<std::mutex> lock(stacks_mutex);
    auto& stacks = free_stacks();
    if (!stacks.empty()) {
      char* stack = stacks.back();
      stacks.pop_back();
      return stack;
    }
  }
  const uint64_t guard = uint64_t(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, guard + stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    fprintf(stderr, "opwright simulator: no memory for the stack of a thread\n");
    abort();
  }
  mprotect(memory, guard, PROT_NONE);  // a stack that overflows must not run into the next
  return static_cast<char*>(memory) + guard;
}

}  // namespace

Worker* current_worker() { return worker_of_this_thread; }

// --- Launch ---

Launch::Launch(Request& request)
    : request(request),
      blocks(uint64_t(request.grid[0]) * request.grid[1] * request.grid[2]),
      threads_per_block(request.block[0] * request.block[1] * request.block[2]),
      module_base_(opwright_sim_module_base()),
      limited_(request.time_limit_s > 0),
      deadline_(Clock::now() + std::chrono::microseconds(int64_t(std::min(request.time_limit_s, 1e9) * 1e6))) {
  if (request.permuted && blocks > 1) {
    uint64_t random = request.seed;
    offset_ = next_random(random) % blocks;
    do {
      stride_ = next_random(random) % blocks;
    } while (std::gcd(stride_, blocks) != 1);
  }
}

bool Launch::next_block(uint64_t& linear) {
  const uint64_t turn = next_.fetch_add(1, std::memory_order_relaxed);
  if (turn >= blocks) return false;
  linear = uint64_t((static_cast<unsigned __int128>(turn) * stride_ + offset_) % blocks);
  return true;
}

void Launch::report(const Finding& finding) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (uint32_t i = 0; i < request.finding_count; i++) {
    const Finding& known = request.findings[i];
    if (known.kind == finding.kind && known.pc == finding.pc && known.line == finding.line) return;
  }
  if (request.finding_count < most_findings) request.findings[request.finding_count++] = finding;
}

bool Launch::is_kernel_code(uint64_t pc) const {
  const uint64_t offset = relative(pc);
  return std::any_of(request.code, request.code + request.code_count,
                     [&](const CodeRange& range) { return offset - range.offset < range.size; });
}

// --- Watchdog ---

namespace {

uint64_t interrupted_at(const void* context) {
#if defined(__x86_64__)
  return uint64_t(static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return static_cast<const ucontext_t*>(context)->uc_mcontext.pc;
#else
  (void)context;
  return 0;
#endif
}

// Runs on the stack of the interrupted fiber. That fiber is abandoned within the handler and never continues; its stack
// is used again from its beginning by the next block. Outside of the kernel's code a lock may be held, so nothing is
// stopped there.
void on_signal(int, siginfo_t*, void* context) {
  Worker* worker = worker_of_this_thread;
  const uint64_t pc = interrupted_at(context);
  if (worker && worker->launch().is_kernel_code(pc)) worker->check_deadline(worker->launch().relative(pc) + 1);
}

std::mutex handler_mutex;
int handler_users = 0;
struct sigaction handler_before;
constexpr int the_signal = SIGURG;  // ignored by default, so an additional one is harmless

void use_handler() {
  const std::lock_guard<std::mutex> lock(handler_mutex);
  if (handler_users++) return;
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER;  // the handler may not return, so nothing may be blocked
  sigaction(the_signal, &action, &handler_before);
}

void restore_handler() {
  const std::lock_guard<std::mutex> lock(handler_mutex);
  if (--handler_users == 0) sigaction(the_signal, &handler_before, nullptr);
}

}  // namespace

Watchdog::Watchdog(const Launch& launch) : launch_(launch) {
  if (!launch.limited()) return;
  use_handler();
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
  }
  done_changed_.notify_one();
  thread_.join();
  restore_handler();
}

void Watchdog::watch(pthread_t thread) {
  const std::lock_guard<std::mutex> lock(mutex_);
  watched_.push_back(thread);
}

void Watchdog::forget(pthread_t thread) {
  const std::lock_guard<std::mutex> lock(mutex_);
  watched_.erase(std::find(watched_.begin(), watched_.end(), thread));
}

void Watchdog::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto done = [this] { return done_; };
  // A little later than the deadline: most threads check the clock themselves.
  if (done_changed_.wait_until(lock, launch_.deadline() + std::chrono::milliseconds(50), done)) return;
  do {
    for (pthread_t thread : watched_) pthread_kill(thread, the_signal);
  } while (!done_changed_.wait_for(lock, std::chrono::milliseconds(10), done));
}

// --- Worker: a block from its start to its end ---

Worker::Worker(Launch& launch)
    : launch_(launch),
      threads_(launch.threads_per_block),
      warps_((launch.threads_per_block + 31) / 32),
      warp_order_(warps_.size()),
      lane_order_(warps_.size() * 32) {
  const Request& request = launch.request;
  for (unsigned rank = 0; rank < threads_.size(); rank++) {
    threads_[rank].index = {rank % request.block[0], rank / request.block[0] % request.block[1],
                            rank / (request.block[0] * request.block[1])};
  }
  std::iota(warp_order_.begin(), warp_order_.end(), 0u);
  for (size_t i = 0; i < lane_order_.size(); i++) lane_order_[i] = uint8_t(i % 32);
  worker_of_this_thread = this;
  blockDim = {request.block[0], request.block[1], request.block[2]};
  gridDim = {request.grid[0], request.grid[1], request.grid[2]};
}

Worker::~Worker() {
  worker_of_this_thread = nullptr;
  const std::lock_guard<std::mutex> lock(stacks_mutex);
  for (Fiber* fiber : all_) {
    free_stacks().push_back(fiber->stack);
    delete fiber;
  }
}

void Worker::run() {
  uint64_t linear;
  while (!launch_.stopped() && launch_.next_block(linear)) run_block(linear);
}

void Worker::order_threads() {
  if (!launch_.request.permuted) return;
  random_ = launch_.request.seed ^ (block_ + 1) * 0x9e3779b97f4a7c15ull;
  shuffle_in_place(warp_order_.data(), warp_order_.size(), random_);
  for (size_t warp = 0; warp < warps_.size(); warp++) shuffle_in_place(&lane_order_[warp * 32], 32, random_);
}

void Worker::run_block(uint64_t linear) {
  const Request& request = launch_.request;
  block_ = linear;
  abandoned_ = false;
  blockIdx = {unsigned(linear % request.grid[0]), unsigned(linear / request.grid[0] % request.grid[1]),
              unsigned(linear / (uint64_t(request.grid[0]) * request.grid[1]))};
  order_threads();
  for (unsigned warp = 0; warp < warps_.size(); warp++) {
    const unsigned lanes = std::min(32u, unsigned(threads_.size()) - warp * 32);
    const unsigned all = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1u;
    warps_[warp] = {all, all, 0, 0, 0, 0, 0, 0, 0};
  }
  if (active_checker) active_checker->begin_block(*this, unsigned(threads_.size()));
  while (!abandoned_) {
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
    if (!alive) return;
    if (yielded || ran || release_barrier()) continue;
    report_deadlock();
    abandoned_ = true;
  }
  launch_.any_block_abandoned.store(true, std::memory_order_relaxed);
  drop_fibers();
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
      fiber_ = take_fiber();
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
      opwright_kernel_entry(worker.launch_.request.arguments);
      worker.finish(*thread);
    }
    worker.idle_.push_back(worker.fiber_);
    worker.switch_to_scheduler();
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
  enter(thread);
  return &thread;
}

void Worker::enter(Thread& thread) {
  current_ = &thread;
  fiber_ = thread.fiber;
  threadIdx = thread.index;
}

void Worker::finish(Thread& thread) {
  const unsigned rank = unsigned(&thread - threads_.data());
  Warp& warp = warp_of(rank);
  const unsigned bit = 1u << (rank % 32);
  warp.alive &= ~bit;
  if (!thread.returned_early) warp.fell_off |= bit;
  if (warp.at_warp) complete_all_in_warp(rank / 32);  // the others may wait only for this one
  if (active_checker) active_checker->progressed();
}

void Worker::resume(Thread& thread) {
  enter(thread);
  scheduler_.switch_to(fiber_->context);
}

void Worker::switch_to_scheduler() { fiber_->context.switch_to(scheduler_); }

Fiber* Worker::take_fiber() {
  if (idle_.empty()) {
    auto* fiber = new Fiber;
    fiber->stack = take_stack();
    fiber->context.prepare(fiber->stack, stack_bytes, &Worker::fiber_main);
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
  for (Fiber* fiber : all_) fiber->context.prepare(fiber->stack, stack_bytes, &Worker::fiber_main);
}

void Worker::abandon() {
  abandoned_ = true;
  switch_to_scheduler();
  __builtin_unreachable();
}

// --- waiting ---

unsigned Worker::barrier(BarrierKind kind, bool predicate, Site site) {
  Thread& thread = *current_;
  thread.wait = Wait{};
  thread.wait.operation = Operation::barrier;
  thread.wait.site = site;
  thread.wait.kind = kind;
  thread.wait.predicate = predicate;
  Warp& warp = warp_of(rank());
  warp.at_barrier |= 1u << (rank() % 32);
  switch_to_scheduler();
  return thread.wait.answer;
}

// Opens the block's barrier if every thread that is left waits at the same one.
bool Worker::release_barrier() {
  const Thread* first = nullptr;
  unsigned came = 0, agreed = 0;
  for (size_t w = 0; w < warps_.size(); w++) {
    if (warps_[w].alive != warps_[w].at_barrier) return false;
    for (unsigned lanes = warps_[w].at_barrier; lanes; lanes &= lanes - 1) {
      const Thread& thread = threads_[w * 32 + unsigned(__builtin_ctz(lanes))];
      if (!first) first = &thread;
      if (!same_line(thread.wait.site, first->wait.site) || thread.wait.kind != first->wait.kind) return false;
      came++;
      agreed += thread.wait.predicate;
    }
  }
  if (active_checker) report_late_threads(*first);
  for (size_t w = 0; w < warps_.size(); w++) {
    for (unsigned lanes = warps_[w].at_barrier; lanes; lanes &= lanes - 1) {
      Wait& wait = threads_[w * 32 + unsigned(__builtin_ctz(lanes))].wait;
      switch (wait.kind) {
        case BarrierKind::plain: break;
        case BarrierKind::count: wait.answer = agreed; break;
        case BarrierKind::all: wait.answer = agreed == came; break;
        case BarrierKind::any: wait.answer = agreed != 0; break;
      }
    }
    warps_[w].ready |= warps_[w].at_barrier;
    warps_[w].at_barrier = 0;
  }
  if (active_checker) active_checker->barrier_passed();
  if (launch_.past_deadline()) {
    current_ = const_cast<Thread*>(first);
    Finding found = finding(FindingKind::time_limit);
    found.file = first->wait.site.file;
    found.line = first->wait.site.line;
    launch_.report(found);
    launch_.stop();
    abandoned_ = true;
  }
  return true;
}

// CUDA's barriers do not wait for a thread that returned. A thread that reached the kernel's end without the barrier is
// different: the barrier is in code that it did not run, which is a finding.
void Worker::report_late_threads(const Thread& waiting) {
  unsigned late = 0;
  const Thread* one = nullptr;
  for (size_t w = 0; w < warps_.size(); w++) {
    const unsigned lanes = warps_[w].fell_off & ~warps_[w].reported_off;
    warps_[w].reported_off |= lanes;
    late += unsigned(__builtin_popcount(lanes));
    if (lanes && !one) one = &threads_[w * 32 + unsigned(__builtin_ctz(lanes))];
  }
  if (!one) return;
  current_ = const_cast<Thread*>(&waiting);
  Finding found = finding(FindingKind::barrier);
  found.file = waiting.wait.site.file;
  found.line = waiting.wait.site.line;
  found.mask = late;
  describe(block_, unsigned(one - threads_.data()), found.other_block, found.other_thread);
  launch_.report(found);
}

unsigned Worker::wait_in_warp(Wait wait) {
  Thread& thread = *current_;
  const unsigned rank = this->rank(), bit = 1u << (rank % 32);
  if (!(wait.mask & bit)) {
    Finding found = finding(FindingKind::warp_mask);
    found.file = wait.site.file;
    found.line = wait.site.line;
    found.mask = wait.mask;
    found.value = -1;  // the caller itself is not in the mask
    launch_.report(found);
    abandon();
  }
  thread.wait = wait;
  Warp& warp = warp_of(rank);
  warp.at_warp |= bit;
  if (complete_in_warp(rank / 32, thread.wait)) {
    warp.ready &= ~bit;  // it runs already
    return thread.wait.answer;
  }
  switch_to_scheduler();
  return thread.wait.answer;
}

// Runs the operation that the lanes in the mask wait for, if all that are alive wait for the same one.
bool Worker::complete_in_warp(unsigned warp, const Wait& wait) {
  Warp& state = warps_[warp];
  const unsigned lanes = wait.mask & state.alive;
  if ((lanes & state.at_warp) != lanes) return false;
  for (unsigned left = lanes; left; left &= left - 1) {
    const Wait& other = threads_[warp * 32 + unsigned(__builtin_ctz(left))].wait;
    if (other.mask != wait.mask || other.operation != wait.operation || !same_line(other.site, wait.site)) return false;
  }
  if (active_checker) report_unheard_lanes(warp, wait);
  exchange(warp, lanes, wait);
  state.at_warp &= ~lanes;
  state.ready |= lanes;
  if (active_checker) active_checker->lanes_joined(warp, lanes);
  return true;
}

void Worker::complete_all_in_warp(unsigned warp) {
  for (unsigned left = warps_[warp].at_warp; left; left &= left - 1) {
    const unsigned lane = unsigned(__builtin_ctz(left));
    if (warps_[warp].at_warp >> lane & 1u) complete_in_warp(warp, threads_[warp * 32 + lane].wait);
  }
}

void Worker::exchange(unsigned warp, unsigned lanes, const Wait& wait) {
  Thread* threads = &threads_[warp * 32];
  if (wait.operation == Operation::ballot) {
    unsigned votes = 0;
    for (unsigned left = lanes; left; left &= left - 1) {
      const unsigned lane = unsigned(__builtin_ctz(left));
      votes |= unsigned(threads[lane].wait.predicate) << lane;
    }
    for (unsigned left = lanes; left; left &= left - 1) threads[__builtin_ctz(left)].wait.answer = votes;
  }
  if (wait.operation == Operation::shuffle) {
    unsigned deaf = 0;
    for (unsigned left = lanes; left; left &= left - 1) {
      const unsigned lane = unsigned(__builtin_ctz(left));
      Wait& mine = threads[lane].wait;
      const bool there = mine.source < 32 && (lanes >> mine.source & 1u);
      if (!there) deaf |= 1u << lane;
      memcpy(mine.result, there ? threads[mine.source].wait.value : mine.value, mine.size);
    }
    if (deaf && active_checker) {
      Thread* before = current_;
      current_ = &threads[__builtin_ctz(deaf)];
      Finding found = finding(FindingKind::warp_lane);
      found.file = wait.site.file;
      found.line = wait.site.line;
      found.mask = wait.mask;
      found.value = int64_t(current_->wait.source);
      found.missing = deaf;
      launch_.report(found);
      current_ = before;
    }
  }
  if (wait.operation == Operation::gather) {
    for (unsigned left = lanes; left; left &= left - 1) {
      Wait& mine = threads[__builtin_ctz(left)].wait;
      for (unsigned all = lanes; all; all &= all - 1) {
        const unsigned lane = unsigned(__builtin_ctz(all));
        mine.gathered[lane] = threads[lane].wait.wide;
      }
      mine.answer = lanes;
    }
  }
}

// Lanes of the mask that reached the kernel's end without this operation. (Lanes that returned do not count.)
void Worker::report_unheard_lanes(unsigned warp, const Wait& wait) {
  const unsigned missing = wait.mask & warps_[warp].fell_off;
  if (!missing) return;
  Finding found = finding(FindingKind::warp_mask);
  found.file = wait.site.file;
  found.line = wait.site.line;
  found.mask = wait.mask;
  found.missing = missing;
  launch_.report(found);
}

unsigned Worker::active_mask(Site site) {
  Thread& thread = *current_;
  thread.wait = Wait{};
  thread.wait.operation = Operation::active_mask;
  thread.wait.site = site;
  warp_of(rank()).at_active |= 1u << (rank() % 32);
  switch_to_scheduler();
  return thread.wait.answer;
}

// The lanes that reached the same __activemask() while the warp's others took another branch are active together.
bool Worker::release_active(Warp& warp, unsigned first_thread) {
  const Site site = threads_[first_thread + unsigned(__builtin_ctz(warp.at_active))].wait.site;
  unsigned together = 0;
  for (unsigned left = warp.at_active; left; left &= left - 1) {
    const unsigned lane = unsigned(__builtin_ctz(left));
    if (same_line(threads_[first_thread + lane].wait.site, site)) together |= 1u << lane;
  }
  for (unsigned left = together; left; left &= left - 1) threads_[first_thread + unsigned(__builtin_ctz(left))].wait.answer = together;
  warp.at_active &= ~together;
  warp.ready |= together;
  return true;
}

void Worker::yield(uint64_t pc) {
  check_deadline(launch_.relative(pc));
  warp_of(rank()).yielded |= 1u << (rank() % 32);
  switch_to_scheduler();
}

// A thread that spins on atomics waits for another thread: of this block, which must then run, or of another one.
void Worker::note_atomic(uint64_t pc) {
  if ((++atomics_ & 1023u) == 0) yield(pc);
}

void Worker::check_deadline(uint64_t pc) {
  if (!launch_.past_deadline()) return;
  // After an out-of-bounds access a block is missing; a thread that waits for it is no finding.
  if (!launch_.any_block_abandoned.load(std::memory_order_relaxed) && current_ && !launch_.stopped()) {
    Finding found = finding(FindingKind::time_limit);
    found.pc = pc;
    launch_.report(found);
  }
  launch_.stop();
  abandon();
}

// --- findings ---

void Worker::describe(uint64_t block, unsigned rank, uint32_t out_block[3], uint32_t out_thread[3]) const {
  const Request& request = launch_.request;
  out_block[0] = uint32_t(block % request.grid[0]);
  out_block[1] = uint32_t(block / request.grid[0] % request.grid[1]);
  out_block[2] = uint32_t(block / (uint64_t(request.grid[0]) * request.grid[1]));
  const uint3 index = threads_[rank].index;
  out_thread[0] = index.x, out_thread[1] = index.y, out_thread[2] = index.z;
}

Finding Worker::finding(FindingKind kind) const {
  Finding found{};
  found.kind = uint32_t(kind);
  if (current_) describe(block_, rank(), found.block, found.thread);
  return found;
}

// No thread of the block can continue. Each place where threads wait is reported once, with a thread that waits elsewhere.
void Worker::report_deadlock() {
  const Thread* at_barrier = nullptr;
  const Thread* elsewhere = nullptr;
  unsigned waiting = 0;
  for (unsigned rank = 0; rank < threads_.size(); rank++) {
    Thread& thread = threads_[rank];
    const Warp& warp = warp_of(rank);
    const unsigned bit = 1u << (rank % 32);
    if (warp.at_barrier & bit) {
      waiting++;
      if (!at_barrier) at_barrier = &thread;
      if (!same_line(thread.wait.site, at_barrier->wait.site) && !elsewhere) elsewhere = &thread;
    }
  }
  bool in_warp = false;
  for (unsigned rank = 0; rank < threads_.size(); rank++) {
    const Warp& warp = warp_of(rank);
    if (!(warp.at_warp >> (rank % 32) & 1u)) continue;
    in_warp = true;
    current_ = &threads_[rank];
    const Wait& wait = current_->wait;
    Finding found = finding(FindingKind::warp_mask);
    found.file = wait.site.file;
    found.line = wait.site.line;
    found.mask = wait.mask;
    for (unsigned left = wait.mask & warp.alive; left; left &= left - 1) {
      const unsigned lane = unsigned(__builtin_ctz(left));
      const Thread& other = threads_[rank / 32 * 32 + lane];
      const bool came = (warp.at_warp >> lane & 1u) && other.wait.mask == wait.mask &&
                        other.wait.operation == wait.operation && same_line(other.wait.site, wait.site);
      if (came) continue;
      if (!found.missing) {
        describe(block_, rank / 32 * 32 + lane, found.other_block, found.other_thread);
        found.other_file = other.wait.site.file;
        found.other_line = other.wait.site.line;
      }
      found.missing |= 1u << lane;
    }
    launch_.report(found);
  }
  if (in_warp || !at_barrier) return;  // threads at the barrier wait for those
  current_ = const_cast<Thread*>(at_barrier);
  Finding found = finding(FindingKind::barrier);
  found.file = at_barrier->wait.site.file;
  found.line = at_barrier->wait.site.line;
  found.mask = waiting;
  if (elsewhere) {
    describe(block_, unsigned(elsewhere - threads_.data()), found.other_block, found.other_thread);
    found.other_file = elsewhere->wait.site.file;
    found.other_line = elsewhere->wait.site.line;
  }
  launch_.report(found);
}

// --- called by kernels ---

unsigned block_barrier(BarrierKind kind, bool predicate, Site site) {
  return current_worker()->barrier(kind, predicate, site);
}

namespace {
Wait waiting(Operation operation, unsigned mask, Site site) {
  Wait wait{};
  wait.operation = operation;
  wait.mask = mask;
  wait.site = site;
  return wait;
}
}  // namespace

void warp_sync(unsigned mask, Site site) { current_worker()->wait_in_warp(waiting(Operation::sync, mask, site)); }

unsigned warp_ballot(unsigned mask, bool predicate, Site site) {
  Wait wait = waiting(Operation::ballot, mask, site);
  wait.predicate = predicate;
  return current_worker()->wait_in_warp(wait);
}

void warp_shuffle(unsigned mask, const void* value, void* result, unsigned size, unsigned source, Site site) {
  Wait wait = waiting(Operation::shuffle, mask, site);
  wait.value = value;
  wait.result = result;
  wait.size = size;
  wait.source = source;
  current_worker()->wait_in_warp(wait);
}

unsigned warp_gather(unsigned mask, uint64_t value, uint64_t* values, Site site) {
  Wait wait = waiting(Operation::gather, mask, site);
  wait.wide = value;
  wait.gathered = values;
  return current_worker()->wait_in_warp(wait);
}

unsigned warp_active_mask(Site site) { return current_worker()->active_mask(site); }
uint32_t lane_id() { return current_worker()->rank() % 32; }
void yield_to_others() { current_worker()->yield(reinterpret_cast<uint64_t>(__builtin_return_address(0))); }
void returned_early() { current_worker()->returned_early(); }

void fence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (active_checker) active_checker->fenced(current_worker()->rank());
}

long long ticks() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

void assertion_failed(const char* condition, Site site) {
  Worker& worker = *current_worker();
  Finding found = worker.finding(FindingKind::assertion);
  found.file = site.file;
  found.line = site.line;
  snprintf(found.text, sizeof found.text, "%s", condition);
  worker.launch().report(found);
  worker.abandon();
}

void trapped(Site site) {
  Worker& worker = *current_worker();
  Finding found = worker.finding(FindingKind::trap);
  found.file = site.file;
  found.line = site.line;
  worker.launch().report(found);
  worker.abandon();
}

}  // namespace opwright_sim

// --- called by Python ---

extern "C" __attribute__((visibility("default"))) uint32_t opwright_sim_abi_version() {
  return opwright_sim::abi_version;
}

extern "C" __attribute__((visibility("default"))) void opwright_sim_launch(opwright_sim::Request* request) {
  using namespace opwright_sim;
  // The shadow belongs to one launch. In a checked build one launch at a time, on one OS thread: its findings
  // then depend only on the arguments and the seed.
  static std::mutex one_checked_launch;
  std::unique_lock<std::mutex> alone(one_checked_launch, std::defer_lock);
  std::unique_ptr<Checker> checker;
  Launch launch(*request);
  if (request->checked) {
    alone.lock();
    checker = std::make_unique<Checker>(*request);
    active_checker = checker.get();
  }
  const uint64_t wanted = request->checked ? 1 : std::min<uint64_t>(request->workers, launch.blocks);
  Watchdog watchdog(launch);
  const auto work = [&] {
    watchdog.watch(pthread_self());
    Worker(launch).run();
    watchdog.forget(pthread_self());
  };
  std::vector<std::thread> others;
  for (uint64_t i = 1; i < wanted; i++) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  active_checker = nullptr;
  fflush(stdout);  // the kernel's output comes before Python's next output
}
