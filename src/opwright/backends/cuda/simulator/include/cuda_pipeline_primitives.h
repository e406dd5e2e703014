// Asynchronous copies into shared memory, in the form of C.
#pragma once
#include "opwright_simulator.h"

OPWRIGHT_INLINE void __pipeline_memcpy_async(void* to, const void* from, size_t size, size_t zeros = 0) {
  opwright_sim::copy_async(to, from, unsigned(size), unsigned(size - zeros));
}
OPWRIGHT_INLINE void __pipeline_commit() { opwright_sim::commit_copies(); }
OPWRIGHT_INLINE void __pipeline_wait_prior(size_t groups) { opwright_sim::wait_for_copies(unsigned(groups)); }
