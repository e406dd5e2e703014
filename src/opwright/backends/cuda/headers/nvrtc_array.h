// std::array and std::pair for device code, which NVRTC has none of: libcu++'s.
#pragma once
#include <cuda/std/array>
#include <cuda/std/utility>

namespace std {
using cuda::std::array;
using cuda::std::make_pair;
using cuda::std::pair;
}  // namespace std
