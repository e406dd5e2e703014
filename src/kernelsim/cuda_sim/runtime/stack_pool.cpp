// The stacks of CUDA threads. A library of its own, which a process loads once: all kernels take their stacks here.
//
// Stacks outlive launches, because making one takes two system calls, and touching it some page faults. The number of
// stacks is bounded, since each is two of the mappings of which a process may have 65,530; so is the number of those
// that wait for the next launch.

#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <vector>

#include "abi.h"

namespace {

using kernelsim::most_stacks;
using kernelsim::stack_bytes;

constexpr uint64_t most_idle = 2048;             // two blocks of 1,024 threads
constexpr uint64_t kept_bytes = 64 * 1024;       // of an idle stack; what lies deeper is given back to the system
constexpr uint64_t mark = 0x6f70777269676874ull;  // at that depth: overwritten by a thread that went deeper

std::mutex mutex;
uint64_t existing = 0;
std::vector<char*>& idle() {
  static auto* stacks = new std::vector<char*>;  // never destroyed: threads may end after static objects
  return *stacks;
}

uint64_t guard_bytes() { return uint64_t(sysconf(_SC_PAGESIZE)); }
volatile uint64_t& mark_of(char* stack) {
  return *reinterpret_cast<volatile uint64_t*>(stack + stack_bytes - kept_bytes);
}

char* map_stack() {
  const uint64_t guard = guard_bytes();
  void* memory = mmap(nullptr, guard + stack_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (mprotect(memory, guard, PROT_NONE) != 0) {  // a stack that overflows must not run into the next
    munmap(memory, guard + stack_bytes);
    return nullptr;
  }
  char* stack = static_cast<char*>(memory) + guard;
  mark_of(stack) = mark;
  return stack;
}

void unmap_stack(char* stack) { munmap(stack - guard_bytes(), guard_bytes() + stack_bytes); }

}  // namespace

#define KERNELSIM_EXPORT extern "C" __attribute__((visibility("default")))

// The lowest byte of a stack; null if there is no memory for another.
KERNELSIM_EXPORT char* kernelsim_take_stack() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!idle().empty()) {
    char* stack = idle().back();
    idle().pop_back();
    return stack;
  }
  if (existing >= most_stacks) return nullptr;
  char* stack = map_stack();
  existing += stack != nullptr;
  return stack;
}

KERNELSIM_EXPORT void kernelsim_give_stack(char* stack) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (idle().size() >= most_idle) {
    unmap_stack(stack);
    existing--;
    return;
  }
  if (mark_of(stack) != mark) {
    madvise(stack, stack_bytes - kept_bytes, MADV_DONTNEED);
    mark_of(stack) = mark;
  }
  idle().push_back(stack);
}

KERNELSIM_EXPORT uint64_t kernelsim_stacks_existing() {
  const std::lock_guard<std::mutex> lock(mutex);
  return existing;
}
