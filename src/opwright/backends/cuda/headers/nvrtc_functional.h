// Function objects of std for NVRTC, which has no <functional>: libcu++'s.
#pragma once

#include <cuda/std/functional>

namespace std {
using ::cuda::std::plus;
using ::cuda::std::minus;
using ::cuda::std::multiplies;
using ::cuda::std::divides;
using ::cuda::std::modulus;
using ::cuda::std::negate;
using ::cuda::std::equal_to;
using ::cuda::std::not_equal_to;
using ::cuda::std::greater;
using ::cuda::std::less;
using ::cuda::std::greater_equal;
using ::cuda::std::less_equal;
using ::cuda::std::logical_and;
using ::cuda::std::logical_or;
using ::cuda::std::logical_not;
using ::cuda::std::bit_and;
using ::cuda::std::bit_or;
using ::cuda::std::bit_xor;
}  // namespace std
