// Gated activations and softmax, forward. Rows may have gaps between them.
#include "rows.cuh"

constexpr int THREADS = 256;

enum Activation { SILU, GELU, GELU_TANH };

__device__ float sigmoid(float x) { return __fdividef(1.f, 1.f + expf(-x)); }

template <Activation ACTIVATION>
__device__ float activated(float x) {
  if (ACTIVATION == SILU) return x * sigmoid(x);
  if (ACTIVATION == GELU) return x * (0.5f * (1.f + erff(x * 0.7071067811865476f)));
  return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));  // (1 + tanh) / 2 is a sigmoid
}

// A thread computes ROUNDS packs of a row, a block's width apart.
template <class T, int WIDTH, int ROUNDS, int ACTIVATION>
__global__ void __launch_bounds__(THREADS)
    glu(const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ out, long long n, long long blocks,
        long long gate_stride, long long up_stride) {
  const long long row = blockIdx.x / blocks, first = blockIdx.x % blocks * (THREADS * WIDTH * ROUNDS);
  gate += row * gate_stride;
  up += row * up_stride;
  Pack<T, WIDTH> gates[ROUNDS], ups[ROUNDS];
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const long long column = first + (r * THREADS + threadIdx.x) * WIDTH;
    if (column >= n) break;
    gates[r] = load<WIDTH>(gate + column);
    ups[r] = load<WIDTH>(up + column);
  }
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const long long column = first + (r * THREADS + threadIdx.x) * WIDTH;
    if (column >= n) break;
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)
      ups[r].value[e] = static_cast<T>(activated<Activation(ACTIVATION)>(static_cast<float>(gates[r].value[e])) *
                                       static_cast<float>(ups[r].value[e]));
    store(out + row * n + column, ups[r]);
  }
}

template <class T, int WIDTH, int ROUNDS>
__global__ void softmax(const T* __restrict__ x, T* __restrict__ out, long long rows, int n, long long stride) {
  const long long row = static_cast<long long>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;  // whole warps, and only where no warp waits for another
  using Values = Row<T, WIDTH, ROUNDS>;
  Values values(x + row * stride, n, -INFINITY);
  float largest = -INFINITY;
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r)
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) largest = fmaxf(largest, values.value[r][e]);
  largest = over_row<Largest>(largest);
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r)
#pragma unroll
    for (int e = 0; e < WIDTH; ++e)  // past the end 0, also where the largest is -inf
      values.value[r][e] = Values::column(r) < n ? expf(values.value[r][e] - largest) : 0.f;
  const float total = values.sum([](float value) { return value; });
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    if (Values::column(r) >= n) break;
    Pack<T, WIDTH> result;
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) result.value[e] = static_cast<T>(values.value[r][e] / total);
    store(out + row * n + Values::column(r), result);
  }
}
