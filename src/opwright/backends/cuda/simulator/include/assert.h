// assert in a kernel ends the launch with a finding, not the process. No include guard: NDEBUG may change in between.
#include "opwright_simulator/runtime_calls.h"
#undef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) \
  ((condition) ? (void)0 : ::opwright_sim::assertion_failed(#condition, ::opwright_sim::Site::here()))
#endif
