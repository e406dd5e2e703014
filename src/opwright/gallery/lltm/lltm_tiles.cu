// The LLTM cell for steps of middle size on a GPU, in float32: forward in one launch, both matrix products of the backward
// in another. At these sizes, calling torch's products costs more than their work. A block computes a tile of a
// product from slices of its two sides, which it keeps in shared memory; its threads split a slice's terms between them
// (split-K within the block), so that there are enough of them for a few small tiles.
//
// Columns of states and of x come in fours, and tensors begin at multiples of 16 bytes. Offsets are 32 bits wide: a row of
// the weight begins less than MOST_STRIDE after the one before.
#include "cell.cuh"

constexpr int MOST_TILED_ROWS = 512;  // of a step of middle size
constexpr int MOST_TILED_WEIGHTS = 1 << 21;
constexpr int MOST_STRIDE = 1 << 24;
constexpr int DEPTH = 32;  // terms of the sums in a slice
constexpr int ACROSS = 8;  // threads of a block along a tile's columns,
constexpr int DOWN = 8;    // along its rows,
constexpr int PARTS = 4;   // and along a slice's depth
constexpr int THREADS = ACROSS * DOWN * PARTS;
constexpr int FORWARD_ROWS = 32;     // of the forward's tiles;
constexpr int FORWARD_COLUMNS = 16;  // each has these columns of all three gates
constexpr int INPUTS_ROWS = 32;      // of the backward's tiles for the inputs' gradient
constexpr int WEIGHT_ROWS = 64;      // and for the weight's
constexpr int TILE_COLUMNS = 64;     // of both
// While the warps of one wait, those of the other compute. This was measured to be faster than without the bound on
// registers, though some are spilled.
constexpr int BLOCKS_AT_ONCE = 2;  // on a multiprocessor
static_assert(DEPTH % PARTS == 0, "each part takes as many terms of a slice");

__device__ float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }

__device__ int thread_of_block() { return (threadIdx.z * DOWN + threadIdx.y) * ACROSS + threadIdx.x; }

// One side of a product on its way to shared memory: SIZE_ of its rows (or columns) and DEPTH terms at a time. ALONG:
// whether a row's terms lie side by side in memory, or one term of all rows.
template <int SIZE_, bool ALONG>
struct Side {
  static constexpr int SIZE = SIZE_;
  static_assert(SIZE % 8 == 0, "rows in shared memory are 4 floats more than a multiple of 8, which spreads the banks");
  static constexpr int LENGTH = SIZE + 4;  // of a row in shared memory: threads of a warp store to different banks
  static constexpr int LOADS = SIZE * DEPTH / 4, EACH = (LOADS + THREADS - 1) / THREADS;  // of four elements
  const float* from[EACH];
  float4 next[EACH];
  int stride;  // from a term to the next

  static __device__ int index(int load) { return ALONG ? load / 2 % SIZE : load % (SIZE / 4) * 4; }
  static __device__ int term(int load) { return ALONG ? (load % 2 + load / (2 * SIZE) * 2) * 4 : load / (SIZE / 4); }

  // `at(index)` is where an index has its first term, or null outside of the matrix.
  template <class At>
  __device__ Side(int stride, At at) : stride(stride) {
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const int load = thread_of_block() + e * THREADS;
      const float* first = load < LOADS ? at(index(load)) : nullptr;
      from[e] = first != nullptr ? first + term(load) * stride : nullptr;
    }
  }
  // The next slice, into registers; zeros beyond the last term. If ALONG, terms come in fours.
  __device__ void fetch(int terms_left) {
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const bool inside = from[e] != nullptr && term(thread_of_block() + e * THREADS) < terms_left;
      next[e] = inside ? load4(from[e]) : float4{};
      if (inside) from[e] += DEPTH * stride;
    }
  }
  __device__ void put(float* slice) const {
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const int load = thread_of_block() + e * THREADS;
      if (load >= LOADS) return;
      float* to = slice + term(load) * LENGTH + index(load);
      if constexpr (ALONG) {
        to[0] = next[e].x, to[LENGTH] = next[e].y, to[2 * LENGTH] = next[e].z, to[3 * LENGTH] = next[e].w;
      } else {
        *reinterpret_cast<float4*>(to) = next[e];
      }
    }
  }
};

template <int COUNT>
struct alignas(4 * COUNT) Few {
  float value[COUNT];
};

template <int COUNT>
__device__ Few<COUNT> load_few(const float* from) {
  return *reinterpret_cast<const Few<COUNT>*>(from);
}

// A tile of a sum of products, M rows of N columns. A thread computes rows side by side, and of the columns TOGETHER after
// each ACROSS * TOGETHER.
template <int M, int N, int TOGETHER>
struct Tile {
  static_assert(M % (4 * DOWN) == 0 && N % (ACROSS * TOGETHER) == 0, "each thread takes as much of a tile");
  static constexpr int ROWS = M / DOWN, GROUPS = N / (ACROSS * TOGETHER);
  static constexpr int LEFT = (M + 4) * DEPTH, RIGHT = (N + 4) * DEPTH;
  static constexpr int FLOATS = 2 * (LEFT + RIGHT) > M * N ? 2 * (LEFT + RIGHT) : M * N;  // of shared memory

  float* shared;  // two slices of both sides; in the end the tile, a row after the other
  int turn = 0;   // which slices are next
  float sums[ROWS][GROUPS][TOGETHER] = {};

  struct Factors {
    Few<4> left[ROWS / 4];
    Few<TOGETHER> right[GROUPS];
  };

  __device__ Factors factors(const float* left, const float* right, int term) const {
    Factors found;
#pragma unroll
    for (int r = 0; r < ROWS / 4; ++r) found.left[r] = load_few<4>(left + term * (M + 4) + threadIdx.y * ROWS + 4 * r);
#pragma unroll
    for (int g = 0; g < GROUPS; ++g)
      found.right[g] = load_few<TOGETHER>(right + term * (N + 4) + (g * ACROSS + threadIdx.x) * TOGETHER);
    return found;
  }

  template <class Left, class Right>
  __device__ void add(Left left, Right right, int depth) {
    left.fetch(depth);
    right.fetch(depth);
    for (int terms_left = depth; terms_left > 0; terms_left -= DEPTH, turn ^= 1) {
      float *a = shared + turn * (LEFT + RIGHT), *b = a + LEFT;  // some threads may still read the others
      left.put(a);
      right.put(b);
      __syncthreads();
      if (terms_left > DEPTH) {
        left.fetch(terms_left - DEPTH);
        right.fetch(terms_left - DEPTH);
      }
      a += threadIdx.z * (DEPTH / PARTS) * (M + 4);
      b += threadIdx.z * (DEPTH / PARTS) * (N + 4);
#pragma unroll
      for (int term = 0; term < DEPTH / PARTS; ++term) {
        const Factors of = factors(a, b, term);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#pragma unroll
          for (int g = 0; g < GROUPS; ++g) {
#pragma unroll
            for (int n = 0; n < TOGETHER; ++n)
              sums[r][g][n] += of.left[r / 4].value[r % 4] * of.right[g].value[n];
          }
        }
      }
    }
  }

  // The sums of all parts of the block are added to the tile, always in one order, so that results repeat.
  __device__ const float* collect() {
    for (int part = 0; part < PARTS; ++part) {
      __syncthreads();
      if (threadIdx.z != part) continue;
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
          float* to = shared + (threadIdx.y * ROWS + r) * N + (g * ACROSS + threadIdx.x) * TOGETHER;
          Few<TOGETHER> sum = part == 0 ? Few<TOGETHER>{} : load_few<TOGETHER>(to);
#pragma unroll
          for (int n = 0; n < TOGETHER; ++n) sum.value[n] += sums[r][g][n];
          *reinterpret_cast<Few<TOGETHER>*>(to) = sum;
        }
      }
    }
    __syncthreads();
    return shared;
  }
};

using ForwardTile = Tile<FORWARD_ROWS, 3 * FORWARD_COLUMNS, FORWARD_COLUMNS / ACROSS>;

__global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
    lltm_tiles_forward(const float* __restrict__ h, const float* __restrict__ x, const float* __restrict__ weight,
                       const float* __restrict__ bias, const float* __restrict__ c, float* __restrict__ inputs,
                       float* __restrict__ gates, float* __restrict__ h_new, float* __restrict__ c_new, int rows,
                       int columns, int features) {
  __shared__ __align__(16) float shared[ForwardTile::FLOATS];
  const int width = columns + features;
  const int first_row = blockIdx.y * FORWARD_ROWS, first_column = blockIdx.x * FORWARD_COLUMNS;
  const auto add = [&](ForwardTile& tile, const float* input, int from, int depth) {
    const auto row_at = [&](int row) { return first_row + row < rows ? input + (first_row + row) * depth : nullptr; };
    const auto weights_at = [&](int n) {
      const int gate = n / FORWARD_COLUMNS, column = first_column + n % FORWARD_COLUMNS;
      return column < columns ? weight + (gate * columns + column) * width + from : nullptr;
    };
    tile.add(Side<FORWARD_ROWS, true>(1, row_at), Side<3 * FORWARD_COLUMNS, true>(1, weights_at), depth);
  };
  ForwardTile tile{shared};
  add(tile, h, 0, columns);
  add(tile, x, columns, features);
  const float* found = tile.collect();

  const int rows_here = min(FORWARD_ROWS, rows - first_row);
  for (int e = thread_of_block(); e < rows_here * FORWARD_COLUMNS; e += THREADS) {
    const int row = first_row + e / FORWARD_COLUMNS, column = first_column + e % FORWARD_COLUMNS;
    if (column >= columns) continue;
    const int at = row * columns + column;
    float gate[3];
#pragma unroll
    for (int g = 0; g < 3; ++g) {
      gate[g] = found[(e / FORWARD_COLUMNS * 3 + g) * FORWARD_COLUMNS + e % FORWARD_COLUMNS] + bias[g * columns + column];
      gates[(row * 3 + g) * columns + column] = gate[g];
    }
    const State<float> state = step(gate[0], gate[1], gate[2], c[at]);
    h_new[at] = state.h;
    c_new[at] = state.c;
  }
  // [h, x] side by side; blocks with the same rows share them.
  for (int e = 4 * (blockIdx.x * THREADS + thread_of_block()); e < rows_here * width; e += 4 * THREADS * gridDim.x) {
    const int row = first_row + e / width, k = e % width;
    *reinterpret_cast<float4*>(inputs + row * width + k) =
        k < columns ? load4(h + row * columns + k) : load4(x + row * features + k - columns);
  }
}

using InputsTile = Tile<INPUTS_ROWS, TILE_COLUMNS, 4>;
using WeightTile = Tile<WEIGHT_ROWS, TILE_COLUMNS, 4>;

template <int M>
__device__ void store_tile(float* to, const float* tile, int first_row, int first_column, int rows, int columns) {
  for (int e = 4 * thread_of_block(); e < M * TILE_COLUMNS; e += 4 * THREADS) {
    const int row = first_row + e / TILE_COLUMNS, column = first_column + e % TILE_COLUMNS;
    if (row < rows && column < columns) *reinterpret_cast<float4*>(to + row * columns + column) = load4(tile + e);
  }
}

// grad_gates · weight
__device__ void tile_of_inputs(const float* grad_gates, const float* weight, float* grad_inputs, int first_row,
                               int first_column, int rows, int gate_columns, int wanted, int stride, float* shared) {
  const auto grads_at = [&](int r) {
    return first_row + r < rows ? grad_gates + (first_row + r) * gate_columns : nullptr;
  };
  const auto weights_at = [&](int n) { return first_column + n < wanted ? weight + first_column + n : nullptr; };
  InputsTile tile{shared};
  tile.add(Side<INPUTS_ROWS, true>(1, grads_at), Side<TILE_COLUMNS, false>(stride, weights_at), gate_columns);
  store_tile<INPUTS_ROWS>(grad_inputs, tile.collect(), first_row, first_column, rows, wanted);
}

// grad_gatesᵀ · inputs
__device__ void tile_of_weight(const float* grad_gates, const float* inputs, float* grad_weight, int first_row,
                               int first_column, int rows, int gate_columns, int width, float* shared) {
  const auto grads_at = [&](int r) { return first_row + r < gate_columns ? grad_gates + first_row + r : nullptr; };
  const auto inputs_at = [&](int n) { return first_column + n < width ? inputs + first_column + n : nullptr; };
  WeightTile tile{shared};
  tile.add(Side<WEIGHT_ROWS, false>(gate_columns, grads_at), Side<TILE_COLUMNS, false>(width, inputs_at), rows);
  store_tile<WEIGHT_ROWS>(grad_weight, tile.collect(), first_row, first_column, gate_columns, width);
}

// The first blocks have tiles of the inputs' gradient, which take longest, the others those of the weight's. `weight` has
// the columns of those inputs whose gradient is wanted, rows `stride` apart; `inputs`, those of the weight's gradient.
// Either may have none.
__global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
    lltm_tiles_products(const float* __restrict__ grad_gates, const float* __restrict__ weight,
                        const float* __restrict__ inputs, float* __restrict__ grad_inputs, float* __restrict__ grad_weight,
                        int rows, int gate_columns, int wanted, int stride, int width) {
  __shared__ __align__(16) float shared[WeightTile::FLOATS];
  static_assert(WeightTile::FLOATS >= InputsTile::FLOATS, "it serves both");
  const int inputs_across = (wanted + TILE_COLUMNS - 1) / TILE_COLUMNS, inputs_down = (rows + INPUTS_ROWS - 1) / INPUTS_ROWS;
  const int weight_across = (width + TILE_COLUMNS - 1) / TILE_COLUMNS;
  const int block = blockIdx.x, other = block - inputs_across * inputs_down;
  if (other < 0) {
    tile_of_inputs(grad_gates, weight, grad_inputs, block / inputs_across * INPUTS_ROWS,
                   block % inputs_across * TILE_COLUMNS, rows, gate_columns, wanted, stride, shared);
  } else {
    tile_of_weight(grad_gates, inputs, grad_weight, other / weight_across * WEIGHT_ROWS,
                   other % weight_across * TILE_COLUMNS, rows, gate_columns, width, shared);
  }
}
