// A launch: its blocks, its findings, its time limit; and the functions that Python calls.

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "checker.h"

extern "C" uint64_t opwright_sim_module_base();

namespace opwright_sim {

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

void Launch::out_of_memory() {
  const std::lock_guard<std::mutex> lock(mutex_);
  request.out_of_memory = 1;
  stop();
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
  Worker* worker = current_worker();
  const uint64_t pc = interrupted_at(context);
  if (worker && worker->launch().is_kernel_code(pc)) worker->check_deadline(worker->launch().relative(pc) + 1);
}

constexpr int the_signal = SIGURG;  // ignored by default, so an additional one is harmless
struct sigaction overflow_before;

// A thread that recurses too deeply touches the page below its stack. Any other fault is not the simulator's.
void on_fault(int signal, siginfo_t* info, void* context) {
  Worker* worker = current_worker();
  if (worker && worker->is_guard_of_stack(reinterpret_cast<uint64_t>(info->si_addr))) {
    worker->overflow(worker->launch().relative(interrupted_at(context)) + 1);
  }
  if (overflow_before.sa_flags & SA_SIGINFO) {
    overflow_before.sa_sigaction(signal, info, context);
  } else if (overflow_before.sa_handler == SIG_DFL || overflow_before.sa_handler == SIG_IGN) {
    ::signal(signal, SIG_DFL);  // the access is made again, and ends the process
  } else {
    overflow_before.sa_handler(signal);
  }
}

// Handlers of the process, while any launch of this kernel runs.
class Handlers {
 public:
  explicit Handlers(bool limited) : limited_(limited) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (users_++ == 0) install(SIGSEGV, on_fault, SA_ONSTACK, overflow_before);
    if (limited_ && limited_users_++ == 0) install(the_signal, on_signal, SA_RESTART, limit_before_);
  }
  ~Handlers() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--users_ == 0) sigaction(SIGSEGV, &overflow_before, nullptr);
    if (limited_ && --limited_users_ == 0) sigaction(the_signal, &limit_before_, nullptr);
  }

 private:
  static void install(int signal, void (*handler)(int, siginfo_t*, void*), int flags, struct sigaction& before) {
    struct sigaction action {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | flags;  // the handler may not return, so nothing may be blocked
    sigaction(signal, &action, &before);
  }
  static std::mutex mutex_;
  static int users_, limited_users_;
  static struct sigaction limit_before_;
  const bool limited_;
};
std::mutex Handlers::mutex_;
int Handlers::users_ = 0, Handlers::limited_users_ = 0;
struct sigaction Handlers::limit_before_;

// The stack on which this OS thread handles a fault: the thread's own is full then.
class FaultStack {
 public:
  FaultStack() : memory_(bytes) {
    stack_t mine{};
    mine.ss_sp = memory_.data();
    mine.ss_size = bytes;
    sigaltstack(&mine, &before_);
  }
  ~FaultStack() { sigaltstack(&before_, nullptr); }

 private:
  static constexpr size_t bytes = 64 * 1024;
  std::vector<char> memory_;
  stack_t before_{};
};

}  // namespace

Watchdog::Watchdog(const Launch& launch) : launch_(launch) {
  if (launch.limited()) thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
  }
  done_changed_.notify_one();
  thread_.join();
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

}  // namespace opwright_sim

// --- called by Python ---

extern "C" __attribute__((visibility("default"))) uint32_t opwright_sim_abi_version() {
  return opwright_sim::abi_version;
}

namespace {

using namespace opwright_sim;

// Blocks run on this OS thread and, in a fast build, on others: as many as there is work and stacks for.
void run_blocks(Launch& launch) {
  const Request& request = launch.request;
  const uint64_t stacks_allow = std::max<uint64_t>(1, most_stacks / launch.threads_per_block);
  const uint64_t useful = std::min<uint64_t>(std::min<uint64_t>(request.workers, launch.blocks), stacks_allow);
  const Handlers handlers(launch.limited());
  Watchdog watchdog(launch);
  const auto work = [&] {
    try {
      const FaultStack stack;
      Worker worker(launch);
      watchdog.watch(pthread_self());
      worker.run();
      watchdog.forget(pthread_self());
    } catch (const std::bad_alloc&) {
      launch.out_of_memory();
    }
  };
  std::vector<std::thread> others;
  try {
    for (uint64_t i = 1; i < (request.checked ? 1 : useful); i++) others.emplace_back(work);
  } catch (const std::exception&) {
    // The system has no further thread; those that there are do the work.
  }
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void opwright_sim_launch(opwright_sim::Request* request) {
  // The shadow belongs to one launch. In a checked build one launch at a time, on one OS thread: its findings
  // then depend only on the arguments and the seed.
  static std::mutex one_checked_launch;
  std::unique_lock<std::mutex> alone(one_checked_launch, std::defer_lock);
  std::unique_ptr<Checker> checker;
  Launch launch(*request);
  try {
    if (request->checked) {
      alone.lock();
      checker = std::make_unique<Checker>(*request);
      active_checker = checker.get();
    }
    run_blocks(launch);
  } catch (const std::exception&) {
    launch.out_of_memory();
  }
  active_checker = nullptr;
  fflush(stdout);  // the kernel's output comes before Python's next output
}
