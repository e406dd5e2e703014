// A library of its own, with one pointer in the thread-local storage that every thread has from its start. The loader
// has little of that left for libraries that come later; if there is none, this library does not load.

#include "thread_slot.h"

namespace {
__thread __attribute__((tls_model("initial-exec"))) void* slot = nullptr;
}

extern "C" __attribute__((visibility("default"))) int64_t kernelsim_thread_slot() {
  if (!kernelsim::has_thread_slots) return 0;
  return reinterpret_cast<char*>(&slot) - kernelsim::thread_pointer();
}
