// Asynchronous copies into shared memory, in the form of C.
#pragma once
#include "kernelsim.h"

KERNELSIM_INLINE void __pipeline_memcpy_async(void* to, const void* from, size_t size, size_t zeros = 0) {
  kernelsim::copy_async(to, from, unsigned(size), unsigned(size - zeros));
}
KERNELSIM_INLINE void __pipeline_commit() { kernelsim::commit_copies(); }
KERNELSIM_INLINE void __pipeline_wait_prior(size_t groups) { kernelsim::wait_for_copies(unsigned(groups)); }
