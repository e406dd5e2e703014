// assert in a kernel ends the launch with a finding, not the process. No include guard: NDEBUG may change in between.
#include "kernelsim/runtime_calls.h"
#undef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) \
  ((condition) ? (void)0 : ::kernelsim::assertion_failed(#condition, ::kernelsim::Site::here()))
#endif
