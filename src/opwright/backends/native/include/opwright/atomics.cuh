// gpuAtomicAdd and atomicAdd of more types than CUDA has, as sources for ATen call them: torch's own header for its
// stable ABI; the additions alone with a torch that has none (2.11).
#pragma once

#if __has_include(<torch/headeronly/cuda/Atomic.h>)
#include <torch/headeronly/cuda/Atomic.h>
#else
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdint>

namespace opwright {

// Adds to a number of 16 bits. Needs compute capability 7.0.
template <typename T>
__device__ T atomic_add_of_16_bits(T* address, T value) {
  auto* bits = reinterpret_cast<unsigned short*>(address);
  unsigned short seen, found = *bits;
  do {
    seen = found;
    const T sum = T(seen, T::from_bits()) + value;
    found = ::atomicCAS(bits, seen, sum.x);
  } while (found != seen);
  return T(seen, T::from_bits());
}

}  // namespace opwright

inline __device__ int64_t atomicAdd(int64_t* address, int64_t value) {
  return static_cast<int64_t>(
      ::atomicAdd(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value)));
}
inline __device__ torch::headeronly::Half atomicAdd(torch::headeronly::Half* address, torch::headeronly::Half value) {
  return opwright::atomic_add_of_16_bits(address, value);
}
inline __device__ torch::headeronly::BFloat16 atomicAdd(torch::headeronly::BFloat16* address,
                                                        torch::headeronly::BFloat16 value) {
  return opwright::atomic_add_of_16_bits(address, value);
}

template <typename T>
__device__ T gpuAtomicAdd(T* address, T value) {
  return atomicAdd(address, value);
}
template <typename T>
__device__ void gpuAtomicAddNoReturn(T* address, T value) {
  atomicAdd(address, value);
}
#endif
