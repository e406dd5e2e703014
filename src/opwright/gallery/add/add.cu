// Elementwise addition, one template for all variants: a thread adds PER_THREAD elements and loads LOAD of them
// with one instruction. LOAD = 8 halves are the 128 bits that a thread can move at once.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T, int LOAD>
struct alignas(sizeof(T) * LOAD) Pack {
  T value[LOAD];
};

template <class T, int LOAD, int PER_THREAD>
__global__ void add(const T* __restrict__ x, const T* __restrict__ y, T* __restrict__ out, long long n) {
  using Packed = Pack<T, LOAD>;
  constexpr int ROUNDS = PER_THREAD / LOAD;
  // Indices are 64 bits wide: a tensor may have more than 2^31 elements.
  const long long start = static_cast<long long>(blockIdx.x) * blockDim.x * PER_THREAD;
  if (start + blockDim.x * PER_THREAD <= n) {
    // Neighbouring threads load neighbouring packs, so every load of a warp is one contiguous piece of memory; and all
    // of a thread's loads are under way before the first is waited for.
    Packed a[ROUNDS], b[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      const long long i = start + (r * blockDim.x + threadIdx.x) * LOAD;
      a[r] = *reinterpret_cast<const Packed*>(x + i);
      b[r] = *reinterpret_cast<const Packed*>(y + i);
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      Packed sum;
#pragma unroll
      for (int l = 0; l < LOAD; ++l) sum.value[l] = a[r].value[l] + b[r].value[l];
      *reinterpret_cast<Packed*>(out + start + (r * blockDim.x + threadIdx.x) * LOAD) = sum;
    }
  } else {  // the last block, which may end anywhere
#pragma unroll 1
    for (long long i = start + threadIdx.x; i < n; i += blockDim.x) out[i] = x[i] + y[i];
  }
}
