// 1-D convolution on a GPU: a block brings a tile of the input, and as much beyond it as the taps reach, into shared
// memory, and its threads sum from there. A thread loads and stores EACH elements (16 bytes) at once, ROUNDS times.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = 256;
constexpr int ROUNDS = 2;
constexpr int TAPS = 256;  // that one pass over a tile takes: a longer kernel takes several passes

template <class T>
struct Accumulator {
  using type = float;  // half types are summed in float and rounded once
};
template <>
struct Accumulator<double> {
  using type = double;
};

template <class T, int COUNT>
struct alignas(sizeof(T) * COUNT) Pack {
  T value[COUNT];
};

// COUNT elements from an aligned position on; zeros past the end.
template <int COUNT, class T>
__device__ Pack<T, COUNT> load_or_zero(const T* x, long long position, long long n) {
  if (position + COUNT <= n) return *reinterpret_cast<const Pack<T, COUNT>*>(x + position);
  Pack<T, COUNT> pack;
#pragma unroll
  for (int e = 0; e < COUNT; ++e) pack.value[e] = position + e < n ? x[position + e] : static_cast<T>(0.f);
  return pack;
}

template <class Sum, class T, int COUNT>
__device__ void put(Sum* tile, const Pack<T, COUNT>& pack) {
#pragma unroll
  for (int e = 0; e < COUNT; ++e) tile[e] = static_cast<Sum>(pack.value[e]);
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    conv1d(const T* __restrict__ x, const T* __restrict__ k, T* __restrict__ out, long long n, long long m) {
  using Sum = typename Accumulator<T>::type;
  constexpr int EACH = 16 / sizeof(T), LANES = 16 / sizeof(Sum), PARTS = EACH / LANES;
  constexpr int TILE = THREADS * EACH * ROUNDS;
  using Lanes = Pack<Sum, LANES>;
  __shared__ alignas(16) Sum tile[TILE + TAPS];
  __shared__ alignas(16) Sum taps[TAPS];
  // Indices are 64 bits wide: a tensor may have more than 2^31 elements.
  const long long start = static_cast<long long>(blockIdx.x) * TILE;
  const int thread = threadIdx.x;
  Sum total[ROUNDS][EACH] = {};
  for (long long first = 0; first < m; first += TAPS) {
    const int count = m - first < TAPS ? static_cast<int>(m - first) : TAPS;
    const int filled = (count + LANES - 1) / LANES * LANES;  // what is loaded in whole packs has to be there
    if (first > 0) __syncthreads();  // the tile before is not needed any more
    // All of a thread's loads are under way before the first is waited for.
    Pack<T, EACH> loaded[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r)
      loaded[r] = load_or_zero<EACH>(x, start + first + (r * THREADS + thread) * EACH, n);
    // The first warps bring what lies beyond the tile, the last ones the taps.
    for (int at = TILE + thread * EACH; at < TILE + filled; at += THREADS * EACH)
      put(tile + at, load_or_zero<EACH>(x, start + first + at, n));
    for (int j = THREADS - 1 - thread; j < filled; j += THREADS)
      taps[j] = j < count ? static_cast<Sum>(k[first + j]) : static_cast<Sum>(0);
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) put(tile + (r * THREADS + thread) * EACH, loaded[r]);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      // A window of the tile in registers, which moves on by LANES elements for every LANES taps.
      const Sum* base = tile + (r * THREADS + thread) * EACH;
      Sum window[EACH + LANES];
#pragma unroll
      for (int p = 0; p < PARTS; ++p)
        *reinterpret_cast<Lanes*>(window + p * LANES) = *reinterpret_cast<const Lanes*>(base + p * LANES);
      for (int j = 0; j < count; j += LANES) {
        *reinterpret_cast<Lanes*>(window + EACH) = *reinterpret_cast<const Lanes*>(base + j + EACH);
        const Lanes tap = *reinterpret_cast<const Lanes*>(taps + j);
#pragma unroll
        for (int q = 0; q < LANES; ++q) {
          if (j + q >= count) break;
#pragma unroll
          for (int e = 0; e < EACH; ++e) total[r][e] += window[e + q] * tap.value[q];
        }
#pragma unroll
        for (int e = 0; e < EACH; ++e) window[e] = window[e + LANES];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const long long position = start + (r * THREADS + thread) * EACH;
    Pack<T, EACH> result;
#pragma unroll
    for (int e = 0; e < EACH; ++e) result.value[e] = static_cast<T>(total[r][e]);
    if (position + EACH <= n) {
      *reinterpret_cast<Pack<T, EACH>*>(out + position) = result;
    } else {
#pragma unroll
      for (int e = 0; e < EACH; ++e)
        if (position + e < n) out[position + e] = result.value[e];
    }
  }
}

// The gradient for the taps. A block sums a stretch of products for GROUP taps; the blocks' sums are added afterwards.
template <class T>
__global__ void __launch_bounds__(THREADS)
    conv1d_taps(const T* __restrict__ x, const T* __restrict__ grad, typename Accumulator<T>::type* __restrict__ partial,
                long long n, long long m) {
  using Sum = typename Accumulator<T>::type;
  constexpr int GROUP = 8;
  __shared__ Sum of_warps[THREADS / 32][GROUP];
  const long long first = static_cast<long long>(blockIdx.y) * GROUP;
  Sum total[GROUP] = {};
  for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < n;
       i += static_cast<long long>(gridDim.x) * THREADS) {
    const Sum given = static_cast<Sum>(grad[i]);
#pragma unroll
    for (int q = 0; q < GROUP; ++q) {
      const long long at = i + first + q;
      total[q] += (at < n ? static_cast<Sum>(x[at]) : Sum(0)) * given;
    }
  }
#pragma unroll
  for (int q = 0; q < GROUP; ++q) {
    for (int offset = 16; offset > 0; offset /= 2) total[q] += __shfl_down_sync(0xffffffffu, total[q], offset);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][q] = total[q];
  }
  __syncthreads();
  if (threadIdx.x < GROUP && first + threadIdx.x < m) {
    Sum sum = 0;
    for (int w = 0; w < THREADS / 32; ++w) sum += of_warps[w][threadIdx.x];
    partial[blockIdx.x * m + first + threadIdx.x] = sum;
  }
}
