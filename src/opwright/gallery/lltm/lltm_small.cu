// The LLTM cell for small steps on a GPU: one launch forward, one backward, matrix products included. A step of a few rows
// spends its time on launches, so computing some values twice costs less than another launch.
#include "cell.cuh"

constexpr int WARPS = 8;       // of a block
constexpr int GROUP = 16;      // rows of a forward block: a thread holds three sums of each
constexpr int MOST_ROWS = 64;  // of a step that is small
constexpr int MOST_WEIGHTS = 1 << 19;
constexpr int OWN = 4;         // columns of the state that a block of the backward owns, or rows
static_assert(GROUP <= LANES && OWN <= WARPS, "a lane takes a row of a group, a warp one that a block owns");

// Rounded as in a tensor of type T.
template <class T, class S>
__device__ S rounded(S value) {
  return static_cast<S>(static_cast<T>(value));
}

template <class S>
__device__ S sum_of_lanes(S value) {
#pragma unroll
  for (int apart = LANES / 2; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
  return value;
}

// A warp computes a column of the new state for a group of rows: its lanes share the sums of the three gates.
template <class T>
__global__ void __launch_bounds__(LANES* WARPS)
    lltm_small_forward(const T* __restrict__ h, const T* __restrict__ x, const T* __restrict__ weight,
                       const T* __restrict__ bias, const T* __restrict__ c, T* __restrict__ inputs,
                       T* __restrict__ gates, T* __restrict__ h_new, T* __restrict__ c_new, int rows, int columns,
                       int features) {
  using S = typename Wide<T>::type;
  const int width = columns + features, first = blockIdx.y * GROUP, count = min(GROUP, rows - first);
  const auto input = [&](int row, int k) {
    return k < columns ? h[row * columns + k] : x[row * features + k - columns];
  };
  const int thread = (blockIdx.x * WARPS + threadIdx.y) * LANES + threadIdx.x;
  for (int e = thread; e < count * width; e += gridDim.x * WARPS * LANES)
    inputs[first * width + e] = input(first + e / width, e % width);

  const int column = blockIdx.x * WARPS + threadIdx.y;
  if (column >= columns) return;
  S sums[3][GROUP] = {};
  for (int k = threadIdx.x; k < width; k += LANES) {
    S factor[3];
#pragma unroll
    for (int g = 0; g < 3; ++g) factor[g] = static_cast<S>(weight[(g * columns + column) * width + k]);
#pragma unroll
    for (int r = 0; r < GROUP; ++r) {
      const S value = r < count ? static_cast<S>(input(first + r, k)) : S(0);
#pragma unroll
      for (int g = 0; g < 3; ++g) sums[g][r] += factor[g] * value;
    }
  }
  // A lane takes a row.
  S own[3] = {};
#pragma unroll
  for (int r = 0; r < GROUP; ++r) {
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      const S sum = sum_of_lanes(sums[g][r]);
      if (threadIdx.x == r) own[g] = sum;
    }
  }
  if (threadIdx.x >= count) return;
  const int row = first + threadIdx.x, at = row * columns + column;
#pragma unroll
  for (int g = 0; g < 3; ++g) {
    own[g] = rounded<T>(own[g] + static_cast<S>(bias[g * columns + column]));
    gates[(row * 3 + g) * columns + column] = static_cast<T>(own[g]);
  }
  const State<S> state = step<S>(own[0], own[1], own[2], static_cast<S>(c[at]));
  h_new[at] = static_cast<T>(state.h);
  c_new[at] = static_cast<T>(state.c);
}

// The pointwise part of the backward at one place.
template <class T>
struct Pointwise {
  using S = typename Wide<T>::type;
  const T *grad_h, *grad_c, *gates, *c_new;
  int columns;

  __device__ Gradients<S> at(int row, int column) const {
    const int here = row * columns + column;
    const T* gate = gates + row * 3 * columns + column;
    // A gradient that autograd left out is a null pointer, and counts as zeros.
    return step_back<S>(grad_h != nullptr ? static_cast<S>(grad_h[here]) : S(0),
                        grad_c != nullptr ? static_cast<S>(grad_c[here]) : S(0), static_cast<S>(gate[0]),
                        static_cast<S>(gate[columns]), static_cast<S>(gate[2 * columns]), static_cast<S>(c_new[here]));
  }
};

// For a few columns of the state: the gradients of their gates' weights and biases, and of the old cell.
template <class T, class S>
__device__ void backward_of_columns(const Pointwise<T>& pointwise, const T* inputs, T* grad_weight, T* grad_bias,
                                    T* grad_c_old, int first, int rows, int width) {
  __shared__ S grads[MOST_ROWS][3][OWN];
  const int thread = threadIdx.y * LANES + threadIdx.x, columns = pointwise.columns;
  for (int e = thread; e < rows * OWN; e += LANES * WARPS) {
    const int row = e / OWN, own = e % OWN, column = first + own;
    const Gradients<S> grad = column < columns ? pointwise.at(row, column) : Gradients<S>{};
    grads[row][0][own] = grad.in;
    grads[row][1][own] = grad.out;
    grads[row][2][own] = grad.candidate;
    if (column < columns) grad_c_old[row * columns + column] = static_cast<T>(grad.c);
  }
  __syncthreads();
  const int columns_here = min(OWN, columns - first);
  if (thread < 3 * OWN && thread % OWN < columns_here) {
    S sum = 0;  // always in one order, so that results repeat
    for (int row = 0; row < rows; ++row) sum += grads[row][thread / OWN][thread % OWN];
    grad_bias[thread / OWN * columns + first + thread % OWN] = static_cast<T>(sum);
  }
  for (int k = thread; k < width; k += LANES * WARPS) {
    S sums[3][OWN] = {};
    for (int row = 0; row < rows; ++row) {
      const S value = static_cast<S>(inputs[row * width + k]);
#pragma unroll
      for (int g = 0; g < 3; ++g) {
#pragma unroll
        for (int own = 0; own < OWN; ++own) sums[g][own] += rounded<T>(grads[row][g][own]) * value;
      }
    }
#pragma unroll
    for (int g = 0; g < 3; ++g) {
#pragma unroll
      for (int own = 0; own < OWN; ++own) {
        if (own < columns_here) grad_weight[(g * columns + first + own) * width + k] = static_cast<T>(sums[g][own]);
      }
    }
  }
}

// For a few rows: the gradients of LANES inputs. Warps share the sum over the gates, some columns of the state at a time.
template <class T, class S>
__device__ void backward_of_rows(const Pointwise<T>& pointwise, const T* weight, T* grad_inputs, int first, int rows,
                                 int from, int width, long long stride) {
  constexpr int TILE = 128;  // columns of the state
  __shared__ S grads[OWN][3][TILE];
  __shared__ S parts[WARPS][OWN][LANES];
  const int thread = threadIdx.y * LANES + threadIdx.x, columns = pointwise.columns, k = from + threadIdx.x;
  S sums[OWN] = {};
  for (int tile = 0; tile < columns; tile += TILE) {
    __syncthreads();  // the values from before are not needed any more
    for (int e = thread; e < OWN * TILE; e += LANES * WARPS) {
      const int own = e / TILE, column = tile + e % TILE;
      const bool inside = first + own < rows && column < columns;
      const Gradients<S> grad = inside ? pointwise.at(first + own, column) : Gradients<S>{};
      grads[own][0][e % TILE] = rounded<T>(grad.in);
      grads[own][1][e % TILE] = rounded<T>(grad.out);
      grads[own][2][e % TILE] = rounded<T>(grad.candidate);
    }
    __syncthreads();
    if (k >= width) continue;
#pragma unroll 4
    for (int j = threadIdx.y; j < min(TILE, columns - tile); j += WARPS) {
#pragma unroll
      for (int g = 0; g < 3; ++g) {
        const S factor = static_cast<S>(weight[(g * columns + tile + j) * stride + k]);
#pragma unroll
        for (int own = 0; own < OWN; ++own) sums[own] += grads[own][g][j] * factor;
      }
    }
  }
#pragma unroll
  for (int own = 0; own < OWN; ++own) parts[threadIdx.y][own][threadIdx.x] = sums[own];
  __syncthreads();
  const int own = threadIdx.y;
  if (own >= OWN || first + own >= rows || k >= width) return;
  S total = 0;
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) total += parts[warp][own][threadIdx.x];
  grad_inputs[(first + own) * width + k] = static_cast<T>(total);
}

// The first blocks own columns of the state, the others rows and LANES inputs. `weight` has the columns of those inputs
// whose gradient is wanted, rows `stride` apart; `inputs`, those of the weights' gradient. Either may have none.
template <class T>
__global__ void __launch_bounds__(LANES* WARPS)
    lltm_small_backward(const T* __restrict__ grad_h, const T* __restrict__ grad_c, const T* __restrict__ weight,
                        const T* __restrict__ inputs, const T* __restrict__ gates, const T* __restrict__ c_new,
                        T* __restrict__ grad_inputs, T* __restrict__ grad_weight, T* __restrict__ grad_bias,
                        T* __restrict__ grad_c_old, int rows, int columns, int weight_columns, long long stride,
                        int input_columns) {
  using S = typename Wide<T>::type;
  const Pointwise<T> pointwise{grad_h, grad_c, gates, c_new, columns};
  const int owners = (columns + OWN - 1) / OWN, block = blockIdx.x;
  if (block < owners) {
    backward_of_columns<T, S>(pointwise, inputs, grad_weight, grad_bias, grad_c_old, block * OWN, rows, input_columns);
  } else {
    const int across = (weight_columns + LANES - 1) / LANES, rest = block - owners;
    backward_of_rows<T, S>(pointwise, weight, grad_inputs, rest / across * OWN, rows, rest % across * LANES,
                           weight_columns, stride);
  }
}
