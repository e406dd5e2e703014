// Loads and stores with cache hints, fences, and the other memory intrinsics.
#pragma once

#include "runtime_calls.h"

#define OPWRIGHT_LOAD(NAME)                \
  template <class T>                       \
  OPWRIGHT_INLINE T NAME(const T* address) { \
    return *address;                       \
  }
#define OPWRIGHT_STORE(NAME)                                                             \
  template <class T>                                                                     \
  OPWRIGHT_INLINE void NAME(T* address, std::common_type_t<T> value) { /* as CUDA: T from the address */ \
    *address = value;                                                                    \
  }
OPWRIGHT_LOAD(__ldca)
OPWRIGHT_LOAD(__ldcg)
OPWRIGHT_LOAD(__ldcs)
OPWRIGHT_LOAD(__ldcv)
OPWRIGHT_LOAD(__ldlu)
OPWRIGHT_STORE(__stwb)
OPWRIGHT_STORE(__stcg)
OPWRIGHT_STORE(__stcs)
OPWRIGHT_STORE(__stwt)
#undef OPWRIGHT_LOAD
#undef OPWRIGHT_STORE
template <class T>
OPWRIGHT_INLINE T __ldg(const T* address) {
  opwright_sim::read_only_load(address, sizeof(T));
  return *address;
}

OPWRIGHT_INLINE void __threadfence() { opwright_sim::fence(); }
OPWRIGHT_INLINE void __threadfence_block() { opwright_sim::fence(); }
OPWRIGHT_INLINE void __threadfence_system() { opwright_sim::fence(); }
OPWRIGHT_INLINE void __nanosleep(unsigned) { opwright_sim::yield_to_others(); }
OPWRIGHT_INLINE long long clock64() { return opwright_sim::ticks(); }
// A macro, because C's <time.h> has a function of this name.
#define clock() clock_t(opwright_sim::ticks())
[[noreturn]] OPWRIGHT_INLINE void __trap(opwright_sim::Site site = opwright_sim::Site::here()) {
  opwright_sim::trapped(site);
}
OPWRIGHT_INLINE void __brkpt() {}
#define __builtin_assume(condition) ((void)0)
