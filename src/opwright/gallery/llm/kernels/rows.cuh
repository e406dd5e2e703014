// What kernels over rows share: packs of neighbouring elements, and sums over the threads of a row.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int LANES = 32;

template <class T, int WIDTH>
struct alignas(sizeof(T) * WIDTH) Pack {
  T value[WIDTH];
};

template <int WIDTH, class T>
__device__ Pack<T, WIDTH> load(const T* from) {
  return *reinterpret_cast<const Pack<T, WIDTH>*>(from);
}

template <class T, int WIDTH>
__device__ void store(T* to, const Pack<T, WIDTH>& pack) {
  if constexpr (sizeof(pack) == sizeof(uint4)) {  // as one store: a struct's parts are stored one by one
    uint4 word;
    memcpy(&word, &pack, sizeof(word));
    *reinterpret_cast<uint4*>(to) = word;
  } else {
    *reinterpret_cast<Pack<T, WIDTH>*>(to) = pack;
  }
}

struct Sum {
  static __device__ float of(float a, float b) { return a + b; }
};
struct Largest {
  static __device__ float of(float a, float b) { return fmaxf(a, b); }
};

// The sum or the largest value over the threads of a row. A block has one row, or rows of one warp each. All threads of
// a block must call it.
template <class Operation>
__device__ float over_row(float value) {
  for (int distance = LANES / 2; distance > 0; distance /= 2)
    value = Operation::of(value, __shfl_xor_sync(0xffffffffu, value, distance));
  if (blockDim.x == LANES) return value;
  __shared__ float of_warps[LANES];
  __syncthreads();  // an earlier call's values are not needed any more
  if (threadIdx.x % LANES == 0) of_warps[threadIdx.x / LANES] = value;
  __syncthreads();
  value = of_warps[0];
  for (int warp = 1; warp < blockDim.x / LANES; ++warp) value = Operation::of(value, of_warps[warp]);
  return value;
}

// A row of at most blockDim.x · ROUNDS · WIDTH elements in the registers of its threads. `other` stands past its end.
template <class T, int WIDTH, int ROUNDS>
struct Row {
  float value[ROUNDS][WIDTH];

  __device__ Row(const T* from, int n, float other) {
    Pack<T, WIDTH> loaded[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)  // all loads are under way before the first value is used
      if (column(r) < n) loaded[r] = load<WIDTH>(from + column(r));
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
#pragma unroll
      for (int e = 0; e < WIDTH; ++e)
        value[r][e] = column(r) < n ? static_cast<float>(loaded[r].value[e]) : other;
  }

  static __device__ int column(int round) { return (round * blockDim.x + threadIdx.x) * WIDTH; }

  template <class Function>
  __device__ float sum(Function of) const {
    float total = 0;
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
#pragma unroll
      for (int e = 0; e < WIDTH; ++e) total += of(value[r][e]);
    return over_row<Sum>(total);
  }
};
