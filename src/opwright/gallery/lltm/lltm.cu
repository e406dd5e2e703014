// The pointwise part of the LLTM cell on a GPU, twice: with raw pointers, which load 16 bytes at once where the sizes
// allow, and with accessors, which take any strides and check every index in debug builds (-DCHECK_BOUNDS). The matrix
// products are torch's.
//
// A thread computes WIDTH neighbouring columns of several rows. Sizes and offsets are 64 bits wide.
#include "cell.cuh"

constexpr int ROWS = 16;  // threads above each other in a block of the backward kernels

// Replaces each thread's sum for its columns by its block's: the sum over the block's rows of threads, always in the
// same order. All threads of a block must call it.
template <int WIDTH, class S, class Part>
__device__ void sum_over_rows(const S (&own)[WIDTH], Part* sums, long long column, long long columns) {
  __shared__ S held[ROWS][WIDTH][LANES];
  __syncthreads();  // the values from before are not needed any more
#pragma unroll
  for (int e = 0; e < WIDTH; ++e) held[threadIdx.y][e][threadIdx.x] = own[e];
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
#pragma unroll
  for (int e = 0; e < WIDTH; ++e) {
    S total = 0;
#pragma unroll
    for (int row = 0; row < ROWS; ++row) total += held[row][e][threadIdx.x];
    sums[column + e] = static_cast<Part>(total);
  }
}

// -- with raw pointers --------------------------------------------------------------------------------------

template <class T, int WIDTH>
struct alignas(sizeof(T) * WIDTH) Pack {
  T value[WIDTH];
};

template <int WIDTH, class T>
__device__ Pack<T, WIDTH> load(const T* from) {
  return *reinterpret_cast<const Pack<T, WIDTH>*>(from);
}

// A gradient that autograd left out is a null pointer, and counts as zeros.
template <int WIDTH, class T>
__device__ Pack<T, WIDTH> load_if_given(const T* from, long long offset) {
  if (from != nullptr) return load<WIDTH>(from + offset);
  Pack<T, WIDTH> zeros;
#pragma unroll
  for (int e = 0; e < WIDTH; ++e) zeros.value[e] = static_cast<T>(0.f);
  return zeros;
}

template <class T, int WIDTH>
__device__ void store(T* to, const Pack<T, WIDTH>& pack) {
  if constexpr (sizeof(pack) == sizeof(uint4)) {  // as one store: a struct's parts are stored one by one
    uint4 word;
    memcpy(&word, &pack, sizeof(word));
    __stwb(reinterpret_cast<uint4*>(to), word);
  } else {
    *reinterpret_cast<Pack<T, WIDTH>*>(to) = pack;
  }
}

template <class T, int WIDTH>
__global__ void lltm_forward(const T* __restrict__ gates, const T* __restrict__ c, T* __restrict__ h_new,
                             T* __restrict__ c_new, long long rows, long long columns) {
  using S = typename Wide<T>::type;
  const long long column = (static_cast<long long>(blockIdx.x) * LANES + threadIdx.x) * WIDTH;
  if (column >= columns) return;
  const long long stride = static_cast<long long>(gridDim.y) * blockDim.y;
  for (long long row = static_cast<long long>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows; row += stride) {
    const long long at = row * columns + column;
    const T* gate = gates + row * 3 * columns + column;
    const Pack<T, WIDTH> in = load<WIDTH>(gate), out = load<WIDTH>(gate + columns),
                         candidate = load<WIDTH>(gate + 2 * columns), cell = load<WIDTH>(c + at);
    Pack<T, WIDTH> next_h, next_c;
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) {
      const State<S> state = step<S>(in.value[e], out.value[e], candidate.value[e], cell.value[e]);
      next_h.value[e] = static_cast<T>(state.h);
      next_c.value[e] = static_cast<T>(state.c);
    }
    store(h_new + at, next_h);
    store(c_new + at, next_c);
  }
}

// Besides the gradients of gates and cell, each row of blocks writes a row of `sums`: the gradient of the bias for its
// `rows_per_block` rows.
template <class T, int WIDTH, class Part>
__global__ void __launch_bounds__(LANES* ROWS)
    lltm_backward(const T* __restrict__ gates, const T* __restrict__ c_new, const T* __restrict__ grad_h,
                  const T* __restrict__ grad_c, T* __restrict__ grad_gates, T* __restrict__ grad_c_old,
                  Part* __restrict__ sums, long long rows, long long columns, long long rows_per_block) {
  using S = typename Wide<T>::type;
  const long long column = (static_cast<long long>(blockIdx.x) * LANES + threadIdx.x) * WIDTH;
  const long long first = blockIdx.y * rows_per_block;
  const long long last = first + rows_per_block < rows ? first + rows_per_block : rows;
  S sum_in[WIDTH] = {}, sum_out[WIDTH] = {}, sum_candidate[WIDTH] = {};
  for (long long row = first + threadIdx.y; row < last && column < columns; row += ROWS) {
    const long long at = row * columns + column, gate = row * 3 * columns + column;
    const Pack<T, WIDTH> in = load<WIDTH>(gates + gate), out = load<WIDTH>(gates + gate + columns),
                         candidate = load<WIDTH>(gates + gate + 2 * columns), cell = load<WIDTH>(c_new + at),
                         from_h = load_if_given<WIDTH>(grad_h, at), from_c = load_if_given<WIDTH>(grad_c, at);
    Pack<T, WIDTH> to_in, to_out, to_candidate, to_c;
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) {
      const Gradients<S> grad = step_back<S>(from_h.value[e], from_c.value[e], in.value[e], out.value[e],
                                             candidate.value[e], cell.value[e]);
      to_in.value[e] = static_cast<T>(grad.in);
      to_out.value[e] = static_cast<T>(grad.out);
      to_candidate.value[e] = static_cast<T>(grad.candidate);
      to_c.value[e] = static_cast<T>(grad.c);
      sum_in[e] += grad.in;
      sum_out[e] += grad.out;
      sum_candidate[e] += grad.candidate;
    }
    store(grad_gates + gate, to_in);
    store(grad_gates + gate + columns, to_out);
    store(grad_gates + gate + 2 * columns, to_candidate);
    store(grad_c_old + at, to_c);
  }
  Part* own = sums + blockIdx.y * 3 * columns;
  sum_over_rows(sum_in, own, column, columns);
  sum_over_rows(sum_out, own + columns, column, columns);
  sum_over_rows(sum_candidate, own + 2 * columns, column, columns);
}

// -- with accessors -----------------------------------------------------------------------------------------

// A tensor for a kernel: its address, sizes and strides.
template <class T, int DIMS>
struct Accessor {
  T* data;
  long long sizes[DIMS], strides[DIMS];

  template <class... Index>
  __device__ T& at(Index... index) const {
    static_assert(sizeof...(Index) == DIMS, "one index for each dim");
    const long long position[DIMS] = {static_cast<long long>(index)...};
    long long offset = 0;
#pragma unroll
    for (int d = 0; d < DIMS; ++d) {
#ifdef CHECK_BOUNDS
      assert(position[d] >= 0 && position[d] < sizes[d]);
#endif
      offset += position[d] * strides[d];
    }
    return data[offset];
  }
};

template <class T>
__device__ Accessor<T, 2> contiguous(T* data, long long rows, long long columns) {
  return {data, {rows, columns}, {columns, 1}};
}

template <class T>
__global__ void lltm_forward_accessors(const T* gates_data, const T* c_data, T* h_new_data, T* c_new_data,
                                       long long rows, long long columns, long long c_row, long long c_column) {
  using S = typename Wide<T>::type;
  const auto gates = contiguous(gates_data, rows, 3 * columns);
  const Accessor<const T, 2> c{c_data, {rows, columns}, {c_row, c_column}};
  const auto h_new = contiguous(h_new_data, rows, columns), c_new = contiguous(c_new_data, rows, columns);
  const long long column = static_cast<long long>(blockIdx.x) * LANES + threadIdx.x;
  if (column >= columns) return;
  const long long stride = static_cast<long long>(gridDim.y) * blockDim.y;
  for (long long row = static_cast<long long>(blockIdx.y) * blockDim.y + threadIdx.y; row < rows; row += stride) {
    const State<S> state = step<S>(gates.at(row, column), gates.at(row, column + columns),
                                   gates.at(row, column + 2 * columns), c.at(row, column));
    h_new.at(row, column) = static_cast<T>(state.h);
    c_new.at(row, column) = static_cast<T>(state.c);
  }
}

template <class T, class Part>
__global__ void __launch_bounds__(LANES* ROWS)
    lltm_backward_accessors(const T* gates_data, const T* c_new_data, const T* grad_h_data, const T* grad_c_data,
                            T* grad_gates_data, T* grad_c_old_data, Part* sums_data, long long rows, long long columns,
                            long long rows_per_block, long long grad_h_row, long long grad_h_column,
                            long long grad_c_row, long long grad_c_column) {
  using S = typename Wide<T>::type;
  const auto gates = contiguous(gates_data, rows, 3 * columns);
  const auto c_new = contiguous(c_new_data, rows, columns);
  const Accessor<const T, 2> grad_h{grad_h_data, {rows, columns}, {grad_h_row, grad_h_column}};
  const Accessor<const T, 2> grad_c{grad_c_data, {rows, columns}, {grad_c_row, grad_c_column}};
  const auto grad_gates = contiguous(grad_gates_data, rows, 3 * columns);
  const auto grad_c_old = contiguous(grad_c_old_data, rows, columns);
  const long long column = static_cast<long long>(blockIdx.x) * LANES + threadIdx.x;
  const long long first = blockIdx.y * rows_per_block;
  const long long last = first + rows_per_block < rows ? first + rows_per_block : rows;
  S sum_in[1] = {}, sum_out[1] = {}, sum_candidate[1] = {};
  for (long long row = first + threadIdx.y; row < last && column < columns; row += ROWS) {
    const S from_h = grad_h_data != nullptr ? static_cast<S>(grad_h.at(row, column)) : S(0);
    const S from_c = grad_c_data != nullptr ? static_cast<S>(grad_c.at(row, column)) : S(0);
    const Gradients<S> grad =
        step_back<S>(from_h, from_c, gates.at(row, column), gates.at(row, column + columns),
                     gates.at(row, column + 2 * columns), c_new.at(row, column));
    grad_gates.at(row, column) = static_cast<T>(grad.in);
    grad_gates.at(row, column + columns) = static_cast<T>(grad.out);
    grad_gates.at(row, column + 2 * columns) = static_cast<T>(grad.candidate);
    grad_c_old.at(row, column) = static_cast<T>(grad.c);
    sum_in[0] += grad.in;
    sum_out[0] += grad.out;
    sum_candidate[0] += grad.candidate;
  }
  Part* own = sums_data + blockIdx.y * 3 * columns;
  sum_over_rows(sum_in, own, column, columns);
  sum_over_rows(sum_out, own + columns, column, columns);
  sum_over_rows(sum_candidate, own + 2 * columns, column, columns);
}
