// Elementwise addition, as one template for the whole family: a thread adds PER_THREAD elements and loads LOAD of them
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
  // Indices are 64 bits wide: a tensor may have more than 2^31 elements.
  const long long block = static_cast<long long>(blockIdx.x) * blockDim.x * PER_THREAD;
#pragma unroll
  for (int k = 0; k < PER_THREAD / LOAD; ++k) {
    // Neighbouring threads load neighbouring packs, so every load of a warp is one contiguous piece of memory.
    const long long i = block + (static_cast<long long>(k) * blockDim.x + threadIdx.x) * LOAD;
    if (i + LOAD <= n) {
      const Packed a = *reinterpret_cast<const Packed*>(x + i);
      const Packed b = *reinterpret_cast<const Packed*>(y + i);
      Packed sum;
#pragma unroll
      for (int l = 0; l < LOAD; ++l) sum.value[l] = a.value[l] + b.value[l];
      *reinterpret_cast<Packed*>(out + i) = sum;
    } else {
      for (long long j = i; j < n; ++j) out[j] = x[j] + y[j];  // the tail: fewer than LOAD elements
    }
  }
}
