// The shadow of memory in a checked launch: which bytes may be accessed, which contain a value, and the last accesses.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "scheduler.h"

namespace opwright_sim {

// One access that was made: by whom, when, from where.
struct Record {
  uint32_t block;  // its linear index plus one; 0: none
  uint32_t pc;
  uint32_t time;
  uint16_t thread;
  uint8_t bytes;  // which of the cell's bytes
  uint8_t access;
};

// The last write, and two reads: the first since then, and the last by another thread.
struct Cell {
  Record write, first_read, last_read;
};

constexpr uint64_t reserved_stack = 32 * 1024;

struct SyncObject;

// A thread has seen the first `count` releases of an object.
struct Acquired {
  const SyncObject* object;
  uint32_t count;
  uint16_t thread;
  uint32_t time;
};

// A thread that had fenced made an atomic access: its earlier accesses are visible to threads that see it.
struct Release {
  uint32_t index;
  uint32_t block, time, barrier_time;
  uint16_t thread;
  uint32_t seen[32];
  std::vector<Acquired> acquired;
};

struct SyncObject {
  uint32_t count = 0;
  std::unordered_map<uint32_t, std::vector<Release>> by_block;
};

class Checker {
 public:
  explicit Checker(const Request& request);
  ~Checker();

  void begin_block(Worker& worker, unsigned threads);
  void barrier_passed();
  void lanes_joined(unsigned warp, unsigned lanes);
  void fenced(unsigned thread) { fenced_[thread] = true; }
  void access(uint64_t address, uint32_t size, uint32_t what, uint64_t pc);
  void copy_begins(const char* to, const char* from, uint32_t size, uint32_t from_size, uint64_t pc);
  void copy_ends(const char* to, uint32_t size, uint64_t pc);
  void fault(FindingKind kind, uint64_t pc, uint64_t address, int64_t value, const char* text);
  void block_entered(uint64_t pc);  // every basic block of the kernel
  void progressed() { spins_ = 0; }
  // A function that begins with little of the stack left would run out of it in the runtime, with locks held.
  void function_entered(uint64_t pc, const void* frame) {
    if (!worker_ || !on_own_stack(reinterpret_cast<uint64_t>(frame))) return;
    if (reinterpret_cast<uint64_t>(frame) - reinterpret_cast<uint64_t>(worker_->fiber().stack) < reserved_stack) {
      worker_->overflow(relative(pc));
    }
  }
  bool on_own_stack(uint64_t address) const {
    return address - reinterpret_cast<uint64_t>(worker_->fiber().stack) < stack_bytes;
  }
  uint64_t relative(uint64_t pc) const { return pc - module_base_; }

 private:
  struct Shadow {
    Region region;
    unsigned shift;
    Cell* cells;
  };

  void shared_access(uint64_t offset, uint32_t size, uint32_t what, uint64_t pc);
  void global_access(Shadow& shadow, uint64_t address, uint32_t size, uint32_t what, uint64_t pc);
  Shadow* region_of(uint64_t address);
  void record(Cell* cells, uint64_t offset, uint32_t size, unsigned shift, uint32_t what, uint64_t pc, Space space,
              uint64_t address);
  bool ordered(const Record& earlier) const;
  bool ordered_through_atomics(const Record& earlier) const;
  bool covers(const Release& release, const Record& earlier) const;
  bool reaches(const SyncObject& object, uint32_t count, const Record& earlier, int depth) const;
  void synchronise(uint64_t address, uint32_t what);
  Record now(uint32_t what, uint64_t pc, uint8_t bytes) const;
  Finding memory_finding(FindingKind kind, Space space, uint64_t address, uint32_t size, uint32_t what,
                         uint64_t pc) const;
  [[noreturn]] void out_of_bounds(Space space, uint64_t address, uint32_t size, uint32_t what, uint64_t pc);
  void uninitialised(const uint8_t* written, Space space, uint64_t address, uint32_t size, uint32_t what, uint64_t pc);
  bool lacks_values(const uint8_t* written, uint64_t begin, uint32_t size) const;
  bool has_partial_element(const Region& region, uint64_t offset, uint32_t size) const;

  const Request& request_;
  Worker* worker_ = nullptr;
  uint64_t module_base_ = 0;
  uint64_t storage_begin_ = 0, storage_size_ = 0;  // this OS thread's copy of the module's thread-local storage
  uint32_t block_ = 0, time_ = 1, barrier_time_ = 0;
  std::vector<Shadow> regions_;
  Shadow* last_ = nullptr;
  std::vector<uint16_t> owner_;  // of each byte of the storage: 0 for none, else the variable's number plus one
  std::vector<uint8_t> shared_written_;
  Cell* shared_cells_ = nullptr;
  uint64_t shared_cells_bytes_ = 0;
  std::vector<uint32_t> seen_;  // [thread][lane]: when this thread last synchronised with that lane of its warp
  std::vector<uint8_t> fenced_;
  std::unordered_map<uint64_t, std::unique_ptr<SyncObject>> objects_;
  std::vector<Acquired> acquired_;
  uint32_t fuel_ = 1, spins_ = 0;
};

extern Checker* active_checker;

}  // namespace opwright_sim
