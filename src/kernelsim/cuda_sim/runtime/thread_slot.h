// A pointer of each OS thread that is read in two instructions. Thread-local storage of a kernel's library takes a call,
// because it is loaded while the process runs and is large.
#pragma once

#include <stdint.h>

namespace kernelsim {

#if defined(__x86_64__)
inline char* thread_pointer() {
  char* pointer;
  __asm__("movq %%fs:0, %0" : "=r"(pointer));
  return pointer;
}
constexpr bool has_thread_slots = true;
#elif defined(__aarch64__)
inline char* thread_pointer() {
  char* pointer;
  __asm__("mrs %0, tpidr_el0" : "=r"(pointer));
  return pointer;
}
constexpr bool has_thread_slots = true;
#else
inline char* thread_pointer() { return nullptr; }
constexpr bool has_thread_slots = false;
#endif

// `place` is relative to the thread pointer; the library of thread_slot.cpp has it.
inline void*& thread_slot(int64_t place) { return *reinterpret_cast<void**>(thread_pointer() + place); }

}  // namespace kernelsim
