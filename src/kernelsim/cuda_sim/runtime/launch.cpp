// A launch: its blocks, its findings, its time limit; and the functions that Python calls.

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "attempt.h"
#include "checker.h"
#include "suspicions.h"

extern "C" uint64_t kernelsim_module_base();

namespace kernelsim {

Launch::Launch(Request& request)
    : request(request),
      cluster_size(request.cluster[0] * request.cluster[1] * request.cluster[2]),
      units(uint64_t(request.grid[0]) * request.grid[1] * request.grid[2] / cluster_size),
      threads_per_block(request.block[0] * request.block[1] * request.block[2]),
      storage_size(size_of_storage()),
      module_base_(kernelsim_module_base()),
      limited_(request.time_limit_s > 0),
      limit_(std::chrono::microseconds(int64_t(std::min(request.time_limit_s, 1e9) * 1e6))),
      deadline_(Clock::now() + limit_) {
  if (request.permuted && units > 1) {
    uint64_t random = request.seed;
    offset_ = next_random(random) % units;
    do {
      stride_ = next_random(random) % units;
    } while (std::gcd(stride_, units) != 1);
  }
}

bool Launch::next_unit(uint64_t& unit) {
  const uint64_t turn = next_.fetch_add(1, std::memory_order_relaxed);
  if (turn >= units) return false;
  unit = uint64_t((static_cast<unsigned __int128>(turn) * stride_ + offset_) % units);
  return true;
}

uint3 Launch::block_index(uint64_t unit, unsigned member) const {
  const uint32_t* cluster = request.cluster;
  const uint64_t across = request.grid[0] / cluster[0], down = request.grid[1] / cluster[1];
  return {unsigned(unit % across) * cluster[0] + member % cluster[0],
          unsigned(unit / across % down) * cluster[1] + member / cluster[0] % cluster[1],
          unsigned(unit / (across * down)) * cluster[2] + member / (cluster[0] * cluster[1])};
}

void Launch::report(const Finding& finding) {
  if (finding.is_suspicion && unwritten_ != Unwritten::ones) return;
  if (is_attempt()) return refute_attempt();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (uint32_t i = 0; i < request.finding_count; i++) {
    Finding& known = request.findings[i];
    if (known.kind != finding.kind || known.pc != finding.pc || known.line != finding.line) continue;
    if (known.is_suspicion && !finding.is_suspicion) known = finding;
    return;
  }
  if (request.finding_count < most_findings) request.findings[request.finding_count++] = finding;
}

void Launch::begin_attempt() {
  first_of_attempt_ = next_;
  refuted_ = false;
  attempt_ = true;
}

void Launch::refute_attempt() {
  refuted_ = true;
  stop();
}

bool Launch::end_attempt() {
  attempt_ = false;
  return !refuted_;
}

void Launch::begin_repeat(Unwritten with) {
  unwritten_ = with;
  request.finding_count = 0;
  first_of_attempt_ = 0;
  repeat_blocks();
}

void Launch::repeat_blocks() {
  next_ = first_of_attempt_;
  stopped_ = false;
  any_block_abandoned = false;
  deadline_ = Clock::now() + limit_;
}

void Launch::out_of_memory() {
  if (is_attempt()) return refute_attempt();
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
  Worker* worker = worker_here();
  const uint64_t pc = interrupted_at(context);
  if (worker && worker->launch().is_kernel_code(pc)) worker->check_deadline(worker->launch().relative(pc) + 1);
}

constexpr int the_signal = SIGURG;  // ignored by default, so an additional one is harmless
struct sigaction overflow_before;

// A thread that recurses too deeply touches the page below its stack. Any other fault is not the simulator's.
void on_fault(int signal, siginfo_t* info, void* context) {
  Worker* worker = worker_here();
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

}  // namespace

FaultStack::FaultStack() : memory_(64 * 1024) {
  stack_t mine{};
  mine.ss_sp = memory_.data();
  mine.ss_size = memory_.size();
  sigaltstack(&mine, &before_);
}
FaultStack::~FaultStack() { sigaltstack(&before_, nullptr); }

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

}  // namespace kernelsim

// --- called by Python ---

extern "C" __attribute__((visibility("default"))) uint32_t kernelsim_abi_version() {
  return kernelsim::abi_version;
}

namespace {

using namespace kernelsim;

// As many as there is work and stacks for. Each runs clusters, one of whose blocks runs at a time.
uint64_t useful_threads(const Launch& launch, uint64_t units) {
  const uint64_t stacks_allow = std::max<uint64_t>(1, most_stacks / launch.threads_per_block / launch.cluster_size);
  return std::min(std::min<uint64_t>(launch.request.workers, units), stacks_allow);
}

// A fast build's blocks run on this OS thread and on others.
void run_fast(Launch& launch) {
  Watchdog watchdog(launch);
  const auto work = [&] {
    try {
      run_worker(launch, watchdog, nullptr);
    } catch (const std::exception&) {
      launch.out_of_memory();
    }
  };
  const uint64_t useful = useful_threads(launch, launch.units);
  std::vector<std::thread> others;
  try {
    for (uint64_t i = 1; i < useful; i++) others.emplace_back(work);
  } catch (const std::exception&) {
    // The system has no further thread; those that there are do the work.
  }
  work();
  for (std::thread& other : others) other.join();
}

// OS threads are worth their start, and a shadow for each, if the blocks that are left will take some time.
bool is_long(const Launch& launch, Clock::duration elapsed) {
  const double seconds = std::chrono::duration<double>(elapsed).count();
  const auto left = double(launch.units_left()), done = double(launch.units) - left;
  return seconds > 0.002 && seconds * left / done > 0.02;
}

// The checker and the worker of a launch whose blocks run on this OS thread.
struct RunningChecker {
  explicit RunningChecker(Checker& checker) { only_checker = &checker; }
  ~RunningChecker() {
    only_checker = nullptr;
    only_worker = nullptr;
  }
};

// A checked build's blocks run on this OS thread, in order, so that findings depend only on the arguments and the
// seed. If there is much left to do, the others are attempted together, unless what was found already could depend on their order.
void run_checked(Launch& launch) {
  Checker checker(launch.request);
  const RunningChecker running(checker);
  const FaultStack stack;
  Watchdog watchdog(launch);
  Team team(launch, watchdog, &checker);
  only_worker = &team.leader();
  const auto begin = Clock::now();
  bool may_attempt = launch.request.thread_slot != 0 && launch.cluster_size == 1;
  uint64_t unit;
  while (!launch.stopped() && launch.next_unit(unit)) {
    team.run_unit(unit);
    const uint64_t threads = useful_threads(launch, launch.units_left());
    if (!may_attempt || threads < 2 || launch.stopped() || !is_long(launch, Clock::now() - begin)) continue;
    may_attempt = false;
    if (launch.request.finding_count || checker.order_matters()) continue;
    only_worker = nullptr;
    if (attempt_blocks_together(launch, watchdog, checker, unsigned(threads))) break;
    only_worker = &team.leader();
  }
}

}  // namespace

void kernelsim::run_worker(Launch& launch, Watchdog& watchdog, Checker* checker) {
  const FaultStack stack;
  Team team(launch, watchdog, checker);
  team.run();
}

extern "C" __attribute__((visibility("default"))) void kernelsim_launch(kernelsim::Request* request) {
  // The checkers belong to one launch: in a checked build one launch at a time.
  static std::mutex one_checked_launch;
  std::unique_lock<std::mutex> alone(one_checked_launch, std::defer_lock);
  Launch launch(*request);
  const Handlers handlers(launch.limited());
  try {
    if (request->checked) {
      alone.lock();
      const std::unique_ptr<Snapshot> before = snapshot_for_repeats(*request);
      run_checked(launch);
      if (before) examine_suspicions(launch, *before, run_checked);
    } else {
      run_fast(launch);
    }
  } catch (const std::exception&) {
    launch.out_of_memory();
  }
  fflush(stdout);  // the kernel's output comes before Python's next output
}
