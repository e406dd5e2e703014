// Whose turn it is among the blocks of a cluster, and their barrier.

#include "cluster.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

#include "checker.h"

namespace kernelsim {

namespace {

constexpr unsigned time_outs_of_a_deadlock = 4;  // a thread may do something else between two waits that time out

}  // namespace

Cluster::Cluster(Launch& launch, Checker* checker)
    : size(launch.cluster_size), launch_(launch), checker_(checker) {}

Worker* Cluster::owner_of(uint64_t address) const {
  for (unsigned i = 0; i < size; i++) {
    if (address - members_[i]->storage_begin() < launch_.storage_size) return members_[i];
  }
  return nullptr;
}

// --- turns ---

void Cluster::join(unsigned number, Worker* worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  members_[number] = worker;
  joined_++;
  incomplete_ |= worker == nullptr;
  joined_changed_.notify_one();
}

bool Cluster::is_complete() {
  std::unique_lock<std::mutex> lock(mutex_);
  joined_changed_.wait(lock, [this] { return joined_ == size; });
  return !incomplete_;
}

void Cluster::begin(uint64_t unit) {
  unit_ = unit;
  abandoned_ = false;
  running_ = (uint64_t(1) << size) - 1;
  stalled_ = time_outs_ = 0;
  phase_ = 0;
  alive_ = size * launch_.threads_per_block;
  arrived_ = 0;
  arriving_.clear();
  for (unsigned i = 0; i < size; i++) members_[i]->prepare_block();
  std::iota(order_.begin(), order_.begin() + size, 0u);
  if (launch_.request.permuted && size > 1) {
    uint64_t random = launch_.request.seed ^ (unit + 1) * 0x9e3779b97f4a7c15ull;
    shuffle_in_place(order_.data(), size, random);
  }
  if (checker_) checker_->begin_unit(*this, launch_.threads_per_block);
  if (size == 1) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    give_turn(order_[0]);
  }
  await_turn(0);
}

bool Cluster::await_turn(unsigned number) {
  if (size == 1) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  turns_[number].wait(lock, [&] { return turn_ == number || closed_; });
  if (closed_) return false;
  lock.unlock();
  activate(number);
  return true;
}

void Cluster::pass_turn(unsigned number) {
  if (after(number) == number) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    give_turn(after(number));
  }
  await_turn(number);
}

void Cluster::end_block(unsigned number) {
  running_ &= ~(uint64_t(1) << number);
  stalled_ = 0;
  if (size == 1) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  give_turn(running_ ? after(number) : 0);
}

void Cluster::await_end() {
  if (running_) await_turn(0);
}

void Cluster::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  for (auto& turn : turns_) turn.notify_one();
}

void Cluster::give_turn(unsigned number) {
  turn_ = number;
  turns_[number].notify_one();
}

// The next member whose block has not ended.
unsigned Cluster::after(unsigned number) const {
  const auto end = order_.begin() + size;
  auto at = std::find(order_.begin(), end, number);
  do {
    if (++at == end) at = order_.begin();
  } while (!(running_ >> *at & 1u) && *at != number);
  return *at;
}

void Cluster::activate(unsigned number) {
  if (!checker_) return;
  only_worker = members_[number];
  checker_->enter_block(number);
}

// --- progress ---

bool Cluster::go_on() { return deliver_bulk_copies() || time_out_waits(); }

bool Cluster::deliver_bulk_copies() {
  bool any = false;
  for (unsigned i = 0; i < size; i++) any |= members_[i]->deliver_bulk_copies();
  return any;
}

bool Cluster::end_waits_that_may_time_out() {
  bool any = false;
  for (unsigned i = 0; i < size; i++) any |= members_[i]->end_waits_that_may_time_out();
  return any;
}

// All threads wait. Those whose wait may time out get to do something else; false: they have had their chance.
bool Cluster::time_out_waits() {
  time_outs_ = events_ == events_at_time_out_ ? time_outs_ + 1 : 0;
  events_at_time_out_ = events_;
  return time_outs_ < time_outs_of_a_deadlock && end_waits_that_may_time_out();
}

void Cluster::report_deadlock() {
  for (unsigned i = 0; i < size; i++) {
    if (!has_ended(i)) members_[i]->report_deadlock();
  }
  abandon();
}

// --- the barrier ---

void Cluster::arrive(const Arrival& arrival, const VectorClock& known) {
  arriving_.join(known);
  last_arrival_ = arrival;
  arrived_++;
  note_event();
  if (arrived_ == alive_) complete_phase();
}

void Cluster::leave(bool had_arrived) {
  alive_--;
  arrived_ -= had_arrived;
  if (arrived_ && arrived_ == alive_) complete_phase();
}

void Cluster::complete_phase() {
  for (unsigned i = 0; i < size; i++) members_[i]->report_late_in_cluster(last_arrival_);
  phase_++;
  arrived_ = 0;
  for (unsigned i = 0; i < size; i++) members_[i]->cluster_phase_completed(arriving_);
  arriving_.clear();
  progressed();
}

// --- the team ---

Team::Team(Launch& launch, Watchdog& watchdog, Checker* checker)
    : launch_(launch), watchdog_(watchdog), checker_(checker), cluster_(launch, checker) {
  leader_ = std::make_unique<Worker>(launch, checker, cluster_, 0);
  cluster_.join(0, leader_.get());
  try {
    for (unsigned i = 1; i < cluster_.size; i++) helpers_.emplace_back([this, i] { help(i); });
  } catch (...) {
    stop_helpers();
    throw;
  }
  if (!cluster_.is_complete()) {
    stop_helpers();
    throw std::bad_alloc();
  }
  watchdog_.watch(pthread_self());
}

Team::~Team() {
  watchdog_.forget(pthread_self());
  stop_helpers();
}

void Team::stop_helpers() {
  cluster_.close();
  for (std::thread& helper : helpers_) helper.join();
  helpers_.clear();
}

void Team::help(unsigned number) {
  const FaultStack stack;
  std::unique_ptr<Worker> worker;
  try {
    worker = std::make_unique<Worker>(launch_, checker_, cluster_, number);
  } catch (const std::bad_alloc&) {
  }
  cluster_.join(number, worker.get());
  if (!worker) return;
  watchdog_.watch(pthread_self());
  while (cluster_.await_turn(number)) run_block(number);
  watchdog_.forget(pthread_self());
}

void Team::run_block(unsigned number) {
  try {
    cluster_.member(number).run_block();
  } catch (const std::bad_alloc&) {
    launch_.out_of_memory();
    cluster_.abandon();
  }
  cluster_.end_block(number);
}

void Team::run_unit(uint64_t unit) {
  cluster_.begin(unit);
  run_block(0);
  cluster_.await_end();
}

void Team::run() {
  uint64_t unit;
  while (!launch_.stopped() && launch_.next_unit(unit)) run_unit(unit);
}

}  // namespace kernelsim
