// Types that several of libcu++'s headers declare.
#pragma once

#include <stddef.h>

#include "language.h"

namespace std {}
namespace cuda {

// The host's standard library, but for what is declared here: its atomics would not be simulated.
namespace std {
using namespace ::std;
}

enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };

template <size_t Alignment>
struct aligned_size_t {
  static constexpr size_t align = Alignment;
  size_t value;
  OPWRIGHT_INLINE explicit aligned_size_t(size_t size) : value(size) {}
  OPWRIGHT_INLINE operator size_t() const { return value; }
};

}  // namespace cuda
