// The data that Python and the runtime exchange. abi.py declares the same structures for ctypes; both sides compare
// `abi_version`, so that neither reads the other's older form.
#pragma once

#include <stdint.h>

namespace kernelsim {

constexpr uint32_t abi_version = 7;
constexpr uint32_t most_findings = 64;
constexpr uint64_t stack_bytes = 768 * 1024;  // CUDA allows 512 KiB of local memory; pages cost nothing until used
constexpr uint64_t most_stacks = 16 * 1024;   // of all launches of a process together

enum class FindingKind : uint32_t {
  out_of_bounds = 1,
  uninitialised,
  misaligned,
  race,
  barrier,
  warp_mask,
  warp_lane,
  time_limit,
  assertion,
  trap,
  division_by_zero,
  index_out_of_bounds,
  stack_overflow,
  launch_bounds,
  cluster,
  read_only,
};

enum class Space : uint32_t { none, global, shared, local };

// The kind of an access, as bits of `access`.
// `ordered`: the source states the order of an atomic access, which then acquires and releases as it says.
enum Access : uint32_t {
  access_read = 1,
  access_write = 2,
  access_atomic = 4,
  access_volatile = 8,
  access_ordered = 16,
  access_acquires = 32,
  access_releases = 64,
  access_unseen = 128  // an update whose result its thread does not use
};
constexpr bool is_atomic(uint32_t access) { return access & (access_atomic | access_volatile); }

struct Finding {
  uint32_t kind;
  uint32_t space;
  uint32_t access;
  uint32_t size;
  uint64_t address;  // for shared memory: the offset in the module's thread-local storage
  uint64_t pc;       // relative to the module; 0 if `file` and `line` are set instead
  uint64_t other_pc;
  const char* file;
  const char* other_file;
  uint32_t line;
  uint32_t other_line;
  uint32_t block[3];
  uint32_t thread[3];
  uint32_t other_block[3];
  uint32_t other_thread[3];
  uint32_t other_access;
  uint32_t mask;       // of a warp's lanes, or how many threads
  uint32_t missing;    // lanes that did not take part
  int64_t value;       // an index, an alignment
  uint32_t owner[3];   // whose shared memory it is, if that of another block of the cluster
  uint32_t has_owner;
  uint32_t is_suspicion;  // a finding only if the launch depends on it: see suspicions.h
  char text[128];
};

enum class RegionKind : uint32_t { tensor, variable, read_only };

// Global memory that a kernel may touch. Regions do not overlap, and come sorted.
struct Region {
  uint64_t begin, end;
  uint32_t kind;
  uint32_t granule;   // races are tracked in units of this many bytes: an element
  uint8_t* written;   // one byte for each byte: whether it contains a value; null: all do
  const uint8_t* inside;  // one byte for each byte: whether it is in the tensor; null: all are
  const uint8_t* read_only;  // one byte for each byte: whether no kernel may write it; null: all may be written
};

// What a variable in thread-local storage is. A guard says that the constructor of a shared variable has run; a GPU
// never runs it, so guards are set before the kernel starts.
enum class StorageKind : uint32_t { read_only, shared, guard };

// One variable in shared memory, or one of the runtime's or the compiler's, by its place in thread-local storage.
struct SharedVariable {
  uint64_t offset, size;
  uint32_t kind;
  uint32_t reserved;
};

// The addresses of the kernel's machine code: a thread may be stopped there, but not within the runtime or a library.
struct CodeRange {
  uint64_t offset, size;
};

struct Request {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t cluster[3];
  uint32_t declared_cluster[3];  // __cluster_dims__, if they are others: then nothing ran. Else zeros
  uint32_t dynamic_shared;
  uint32_t workers;
  uint32_t checked;
  uint32_t permuted;
  uint32_t cooperative;  // the blocks of the grid wait for each other: the cluster is the whole grid, and no kernel's
  uint32_t repeatable;   // nobody sees how often the launch runs
  uint64_t seed;
  double time_limit_s;  // 0: none
  void** arguments;
  const Region* regions;
  uint64_t region_count;
  const SharedVariable* shared;
  uint64_t shared_count;
  const CodeRange* code;
  uint64_t code_count;
  uint64_t thread_index_offset;  // of threadIdx in thread-local storage, to find the beginning of a thread's storage
  Finding findings[most_findings];
  uint32_t finding_count;
  uint32_t out_of_memory;  // the launch ended early: there was no memory for its threads or its shadow
  char* (*take_stack)();
  void (*give_stack)(char*);
  int64_t thread_slot;  // see thread_slot.h; 0: there is none
};

struct Parameter {
  uint32_t size;
  uint32_t kind;  // 0 pointer, 1 signed integer, 2 unsigned integer, 3 floating, 4 half, 5 bfloat16, 6 struct
  const char* type_name;  // the compiler's spelling of a function that has the type in its name
};

}  // namespace kernelsim
