// Loads and stores with cache hints, fences, and the other memory intrinsics.
#pragma once

#include "runtime_calls.h"

#define KERNELSIM_LOAD(NAME)               \
  template <class T>                       \
  KERNELSIM_INLINE T NAME(const T* address) { \
    return *address;                       \
  }
#define KERNELSIM_STORE(NAME)                                                            \
  template <class T>                                                                     \
  KERNELSIM_INLINE void NAME(T* address, std::common_type_t<T> value) { /* as CUDA: T from the address */ \
    *address = value;                                                                    \
  }
KERNELSIM_LOAD(__ldca)
KERNELSIM_LOAD(__ldcg)
KERNELSIM_LOAD(__ldcs)
KERNELSIM_LOAD(__ldcv)
KERNELSIM_LOAD(__ldlu)
KERNELSIM_STORE(__stwb)
KERNELSIM_STORE(__stcg)
KERNELSIM_STORE(__stcs)
KERNELSIM_STORE(__stwt)
#undef KERNELSIM_LOAD
#undef KERNELSIM_STORE
template <class T>
KERNELSIM_INLINE T __ldg(const T* address) {
  kernelsim::read_only_load(address, sizeof(T));
  return *address;
}

KERNELSIM_INLINE void __threadfence() { kernelsim::fence(); }
KERNELSIM_INLINE void __threadfence_block() { kernelsim::fence(); }
KERNELSIM_INLINE void __threadfence_system() { kernelsim::fence(); }
KERNELSIM_INLINE void __nanosleep(unsigned) { kernelsim::yield_to_others(); }
KERNELSIM_INLINE long long clock64() { return kernelsim::ticks(); }
// A macro, because C's <time.h> has a function of this name.
#define clock() clock_t(kernelsim::ticks())
[[noreturn]] KERNELSIM_INLINE void __trap(kernelsim::Site site = kernelsim::Site::here()) {
  kernelsim::trapped(site);
}
KERNELSIM_INLINE void __brkpt() {}
#define __builtin_assume(condition) ((void)0)
