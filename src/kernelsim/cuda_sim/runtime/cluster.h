// The blocks of one cluster. Shared memory is storage of an OS thread, so each block has an OS thread of its own; one of
// them runs at a time, until it cannot go on. A cluster of one block, as most are, needs no other OS thread.
#pragma once

#include <stdint.h>

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "vector_clock.h"

namespace kernelsim {

class Checker;
class Launch;
class Watchdog;
class Worker;

class Cluster {
 public:
  Cluster(Launch& launch, Checker* checker);

  Worker& member(unsigned number) const { return *members_[number]; }
  // Whose shared memory an address is in; null if it is in none.
  Worker* owner_of(uint64_t address) const;
  uint64_t unit() const { return unit_; }  // the number of the cluster that runs
  bool is_abandoned() const { return abandoned_; }
  void abandon() { abandoned_ = true; }
  bool has_ended(unsigned number) const { return !(running_ >> number & 1u); }

  // --- whose turn it is ---
  void join(unsigned number, Worker* worker);  // null: there is no memory for it
  bool is_complete();                          // waits until all have joined; false if one could not
  void begin(uint64_t unit);                   // by the first member's OS thread, which then waits for its turn
  bool await_turn(unsigned number);            // false: there are no more clusters
  void pass_turn(unsigned number);             // others run, and then this member again
  void end_block(unsigned number);
  void await_end();
  void close();

  // --- whether anything goes on ---
  // Steps that may let a waiting thread go on.
  void note_event() { events_++; }
  void progressed() { stalled_ = 0; }
  // The member cannot go on. True if no other can either.
  bool has_stalled() { return ++stalled_ >= unsigned(__builtin_popcountll(running_)); }
  // Copies that threads wait for arrive, or else waits time out; false if nothing can go on.
  bool go_on();
  bool time_out_waits();
  bool end_waits_that_may_time_out();
  bool deliver_bulk_copies();
  void report_deadlock();

  // --- the cluster's barrier: of all threads that have not ended ---
  uint64_t phase() const { return phase_; }
  unsigned alive() const { return alive_; }
  unsigned missing() const { return alive_ - arrived_; }
  struct Arrival {
    unsigned agent;
    uint64_t pc;
  };
  void arrive(const Arrival& arrival, const VectorClock& known);
  void leave(bool had_arrived);

  const unsigned size;

 private:
  unsigned after(unsigned number) const;
  void give_turn(unsigned number);
  void activate(unsigned number);
  void complete_phase();

  Launch& launch_;
  Checker* const checker_;
  std::array<Worker*, most_members> members_{};
  std::array<unsigned, most_members> order_{};
  uint64_t unit_ = 0;
  bool abandoned_ = false;
  uint64_t running_ = 0;  // a bit for each member whose block has not ended
  unsigned stalled_ = 0;  // so many members in a row could not go on
  // How often waits timed out since the last event.
  uint64_t events_ = 0, events_at_time_out_ = 0;
  unsigned time_outs_ = 0;

  uint64_t phase_ = 0;
  unsigned alive_ = 0, arrived_ = 0;  // threads
  VectorClock arriving_;
  Arrival last_arrival_{};

  std::mutex mutex_;
  std::array<std::condition_variable, most_members> turns_;
  std::condition_variable joined_changed_;
  unsigned turn_ = 0, joined_ = 0;
  bool closed_ = false, incomplete_ = false;
};

// A cluster's OS threads: the one that makes the team, which runs the first block, and one for each other block.
class Team {
 public:
  // Throws std::bad_alloc, or std::system_error if the system has no further thread.
  Team(Launch& launch, Watchdog& watchdog, Checker* checker);
  ~Team();
  void run_unit(uint64_t unit);
  void run();  // until the launch has no more
  Worker& leader() { return *leader_; }

 private:
  void help(unsigned number);
  void run_block(unsigned number);
  void stop_helpers();

  Launch& launch_;
  Watchdog& watchdog_;
  Checker* const checker_;
  Cluster cluster_;
  std::unique_ptr<Worker> leader_;
  std::vector<std::thread> helpers_;
};

}  // namespace kernelsim
