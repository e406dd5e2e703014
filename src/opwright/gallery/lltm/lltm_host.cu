// The LLTM cell on a GPU with its host code in C++ too: forward and backward are one call each from Python. The kernels are
// those of lltm.cu, and for small and middle steps of lltm_small.cu and lltm_tiles.cu.
#include "lltm.cu"
#include "lltm_small.cu"
#include "lltm_tiles.cu"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include <opwright/tensor.h>
#include <torch/headeronly/core/Dispatch_v2.h>

#include "products.h"

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class T>
struct OnDevice {
  using type = T;
};
template <>
struct OnDevice<torch::headeronly::Half> {
  using type = __half;
};
template <>
struct OnDevice<torch::headeronly::BFloat16> {
  using type = __nv_bfloat16;
};

static unsigned ceil_div(int64_t n, int64_t by) { return static_cast<unsigned>((n + by - 1) / by); }

template <class T>
static const T* data(const Tensor& tensor) {
  return static_cast<const T*>(tensor.data_ptr());
}
template <class T>
static const T* data(const std::optional<Tensor>& tensor) {
  return tensor ? data<T>(*tensor) : nullptr;
}
template <class T>
static T* data(Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

static void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) throw std::runtime_error(std::string(kernel) + ": " + cudaGetErrorString(error));
}

// Whether rows and addresses allow 16 bytes at once.
template <class... Pointer>
static bool is_wide(int64_t columns, int64_t width, Pointer... pointers) {
  return columns % width == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// Whether a step is worth a kernel that does all of it in one launch: few rows, and few weights, of `width` columns; as
// in lltm_cuda.py.
static bool is_small(const Tensor& c, int64_t width) {
  return c.numel() > 0 && c.size(0) <= MOST_ROWS && 3 * c.size(1) * std::max<int64_t>(width, 1) <= MOST_WEIGHTS;
}

// Whether a step is so small that calling torch's products costs more than their work; as in lltm_cuda.py.
static bool is_middle(const Tensor& c, int64_t width) {
  const int64_t weights = 3 * c.size(1) * width;
  return c.size(0) > 0 && c.size(0) <= MOST_TILED_ROWS && weights > 0 && weights <= MOST_TILED_WEIGHTS &&
         c.scalar_type() == ScalarType::Float;
}

// Whether four elements of a row can be loaded at once. Rows lie one after the other, or `rows_in_fours`.
template <class... Matrix>
static bool in_fours(const Matrix&... matrices) {
  return ((matrices.size(1) % 4 == 0 && reinterpret_cast<uintptr_t>(matrices.data_ptr()) % 16 == 0) && ...);
}

// Some columns of a weight are as good as all, if each row begins where four elements can be loaded at once.
static Tensor rows_in_fours(const Tensor& weight) {
  const int64_t row = weight.stride(0);
  return weight.stride(1) == 1 && row % 4 == 0 && row < MOST_STRIDE ? weight : opwright::contiguous(weight);
}

// -- forward ------------------------------------------------------------------------------------------------

// [h, x] side by side; a block has a row, or several if there are more rows than a grid may have.
template <class T>
__global__ void join(const T* __restrict__ h, const T* __restrict__ x, T* __restrict__ out, int64_t rows, int64_t left,
                     int64_t right) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int64_t j = threadIdx.x; j < left + right; j += blockDim.x)
      out[row * (left + right) + j] = j < left ? h[row * left + j] : x[row * right + j - left];
  }
}

template <class T>
static Tensor joined(const Tensor& h, const Tensor& x, cudaStream_t stream) {
  const int64_t rows = h.size(0), left = h.size(1), right = x.size(1);
  Tensor out = opwright::new_empty(h, {rows, left + right});
  if (out.numel() > 0) {
    const unsigned threads = static_cast<unsigned>(std::clamp<int64_t>((left + right + 31) / 32 * 32, 32, 1024));
    join<<<static_cast<unsigned>(std::min<int64_t>(rows, 1 << 20)), threads, 0, stream>>>(
        data<T>(h), data<T>(x), data<T>(out), rows, left, right);
    check_launch("join");
  }
  return out;
}

template <class T>
static void forward_into(Tensor& h_new, Tensor& c_new, const Tensor& gates, const Tensor& c, cudaStream_t stream) {
  constexpr int WIDTH = 16 / sizeof(T);
  const int64_t rows = c.size(0), columns = c.size(1);
  const bool wide = is_wide(columns, WIDTH, data<T>(gates), data<T>(c));
  const dim3 grid(ceil_div(columns, (wide ? WIDTH : 1) * LANES), std::min(ceil_div(rows, 8), 65535u));
  auto* kernel = wide ? lltm_forward<T, WIDTH> : lltm_forward<T, 1>;
  kernel<<<grid, dim3(LANES, 8), 0, stream>>>(data<T>(gates), data<T>(c), data<T>(h_new), data<T>(c_new), rows, columns);
  check_launch("lltm_forward");
}

struct Step {
  Tensor inputs, gates, h_new, c_new;
};

// By a kernel that does all of it in one launch.
template <class T, class... Parameter>
static void whole_step(void (*kernel)(Parameter...), dim3 grid, dim3 block, Step& step, const Tensor& x,
                       const Tensor& weight, const Tensor& bias, const Tensor& h, const Tensor& c, cudaStream_t stream) {
  const int64_t rows = c.size(0), columns = c.size(1), features = x.size(1);
  const Tensor weights = opwright::contiguous(weight), biases = opwright::contiguous(bias);
  step.inputs = opwright::new_empty(c, {rows, columns + features});
  step.gates = opwright::new_empty(c, {rows, 3 * columns});
  kernel<<<grid, block, 0, stream>>>(data<T>(h), data<T>(x), data<T>(weights), data<T>(biases), data<T>(c),
                                     data<T>(step.inputs), data<T>(step.gates), data<T>(step.h_new), data<T>(step.c_new),
                                     static_cast<int>(rows), static_cast<int>(columns), static_cast<int>(features));
  check_launch("a whole step");
}

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                   const Tensor& h, const Tensor& c) {
  const cudaStream_t stream = opwright::current_stream(x);
  const Tensor cell = opwright::contiguous(c), left = opwright::contiguous(h), right = opwright::contiguous(x);
  const int64_t rows = cell.size(0), columns = cell.size(1), width = weight.size(1);
  Step step{{}, {}, opwright::empty_like(cell), opwright::empty_like(cell)};
  THO_DISPATCH_V2(
      cell.scalar_type(), "gallery::lltm", AT_WRAP([&] {
        using T = OnDevice<scalar_t>::type;
        if (is_small(cell, width)) {
          const dim3 grid(ceil_div(columns, WARPS), ceil_div(rows, GROUP));
          whole_step<T>(lltm_small_forward<T>, grid, dim3(LANES, WARPS), step, right, weight, bias, left, cell, stream);
        } else if (is_middle(cell, width) && weight.is_contiguous() && in_fours(right, weight, left)) {
          const dim3 grid(ceil_div(columns, FORWARD_COLUMNS), ceil_div(rows, FORWARD_ROWS));
          whole_step<float>(lltm_tiles_forward, grid, dim3(ACROSS, DOWN, PARTS), step, right, weight, bias, left, cell,
                            stream);
        } else {
          step.inputs = joined<T>(left, right, stream);
          step.gates = addmm(bias, step.inputs, transposed(weight));
          if (cell.numel() > 0) forward_into<T>(step.h_new, step.c_new, step.gates, cell, stream);
        }
      }),
      AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half, ScalarType::BFloat16);
  return {step.h_new, step.c_new, step.inputs, step.gates};
}

// -- backward -----------------------------------------------------------------------------------------------

// A row of sums for each row of blocks becomes the gradient of the bias, always in the same order.
template <class T, class Part>
__global__ void add_up(const Part* __restrict__ sums, T* __restrict__ total, int64_t rows, int64_t columns) {
  const int64_t column = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (column >= columns) return;
  Part found = 0;
  for (int64_t row = 0; row < rows; ++row) found += sums[row * columns + column];
  total[column] = static_cast<T>(found);
}

template <class T>
static void backward_into(Tensor& grad_gates, Tensor& grad_bias, Tensor& grad_c_old, const std::optional<Tensor>& grad_h,
                          const std::optional<Tensor>& grad_c, const Tensor& gates, const Tensor& c_new,
                          cudaStream_t stream) {
  constexpr int WIDTH = 16 / sizeof(T);
  using Part = typename Wide<T>::type;
  const int64_t rows = c_new.size(0), columns = c_new.size(1);
  const auto launch = [&](auto* kernel, int64_t width, auto* sums, int64_t blocks, int64_t rows_of_a_block) {
    kernel<<<dim3(ceil_div(columns, width * LANES), static_cast<unsigned>(blocks)), dim3(LANES, ROWS), 0, stream>>>(
        data<T>(gates), data<T>(c_new), data<T>(grad_h), data<T>(grad_c), data<T>(grad_gates), data<T>(grad_c_old),
        sums, rows, columns, rows_of_a_block);
    check_launch("lltm_backward");
  };
  if (rows <= 256) {  // a single block for each few columns: the fewer, the more blocks
    launch(lltm_backward<T, 1, T>, 1, data<T>(grad_bias), 1, std::max<int64_t>(rows, 1));
    return;
  }
  const int64_t rows_of_a_block = std::max<int64_t>(128, (rows + 1023) / 1024);
  const int64_t blocks = (rows + rows_of_a_block - 1) / rows_of_a_block;
  constexpr bool is_double = sizeof(Part) == sizeof(double);
  Tensor sums = opwright::new_empty(gates, {blocks, 3 * columns}, is_double ? ScalarType::Double : ScalarType::Float);
  const bool wide = is_wide(columns, WIDTH, data<T>(gates), data<T>(c_new), data<T>(grad_h), data<T>(grad_c));
  if (wide) {
    launch(lltm_backward<T, WIDTH, Part>, WIDTH, data<Part>(sums), blocks, rows_of_a_block);
  } else {
    launch(lltm_backward<T, 1, Part>, 1, data<Part>(sums), blocks, rows_of_a_block);
  }
  add_up<<<ceil_div(3 * columns, 128), 128, 0, stream>>>(data<Part>(sums), data<T>(grad_bias), blocks, 3 * columns);
  check_launch("add_up");
}

std::tuple<Tensor, Tensor, Tensor> backward_pointwise(const std::optional<Tensor>& grad_h,
                                                      const std::optional<Tensor>& grad_c, const Tensor& gates,
                                                      const Tensor& c_new) {
  const cudaStream_t stream = opwright::current_stream(gates);
  const Tensor gate = opwright::contiguous(gates), cell = opwright::contiguous(c_new);
  const auto from_h = opwright::contiguous(grad_h), from_c = opwright::contiguous(grad_c);
  Tensor grad_gates = opwright::empty_like(gate), grad_c_old = opwright::empty_like(cell);
  Tensor grad_bias = opwright::new_empty(gate, {gate.size(1)});
  if (gate.size(1) > 0) {
    THO_DISPATCH_V2(
        cell.scalar_type(), "gallery::lltm_backward_pointwise", AT_WRAP([&] {
          using T = OnDevice<scalar_t>::type;
          backward_into<T>(grad_gates, grad_bias, grad_c_old, from_h, from_c, gate, cell, stream);
        }),
        AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half, ScalarType::BFloat16);
  }
  return {grad_gates, grad_bias, grad_c_old};
}

template <class T>
static std::tuple<Tensor, Tensor, Tensor, Tensor> small_backward(const std::optional<Tensor>& grad_h,
                                                                 const std::optional<Tensor>& grad_c,
                                                                 const Tensor& weight, const Tensor& inputs,
                                                                 const Tensor& gates, const Tensor& c_new,
                                                                 cudaStream_t stream) {
  const int64_t rows = c_new.size(0), columns = c_new.size(1), wanted = weight.size(1);
  Tensor grad_inputs = opwright::new_empty(gates, {rows, wanted}), grad_bias = opwright::new_empty(gates, {3 * columns});
  Tensor grad_weight = opwright::new_empty(gates, {3 * columns, inputs.size(1)}), grad_c_old = opwright::empty_like(c_new);
  const unsigned blocks = ceil_div(columns, OWN) + ceil_div(rows, OWN) * ceil_div(wanted, LANES);
  lltm_small_backward<<<blocks, dim3(LANES, WARPS), 0, stream>>>(
      data<T>(grad_h), data<T>(grad_c), data<T>(weight), data<T>(inputs), data<T>(gates), data<T>(c_new),
      data<T>(grad_inputs), data<T>(grad_weight), data<T>(grad_bias), data<T>(grad_c_old), static_cast<int>(rows),
      static_cast<int>(columns), static_cast<int>(wanted), weight.stride(0),
      static_cast<int>(inputs.size(1)));
  check_launch("lltm_small_backward");
  return {grad_inputs, grad_weight, grad_bias, grad_c_old};
}

// The gradients of the inputs and of the weight.
static std::tuple<Tensor, Tensor> products(const Tensor& grad_gates, const Tensor& c_new, const Tensor& weight,
                                           const Tensor& inputs, cudaStream_t stream) {
  const int64_t rows = grad_gates.size(0), gates = grad_gates.size(1), wanted = weight.size(1), width = inputs.size(1);
  if (!is_middle(c_new, std::max(wanted, width))) return {mm(grad_gates, weight), mm(transposed(grad_gates), inputs)};
  const Tensor factor = rows_in_fours(weight), input = opwright::contiguous(inputs);
  if (!in_fours(grad_gates, factor, input)) return {mm(grad_gates, factor), mm(transposed(grad_gates), input)};
  Tensor grad_inputs = opwright::new_empty(grad_gates, {rows, wanted});
  Tensor grad_weight = opwright::new_empty(grad_gates, {gates, width});
  const unsigned blocks = ceil_div(rows, INPUTS_ROWS) * ceil_div(wanted, TILE_COLUMNS) +
                          ceil_div(gates, WEIGHT_ROWS) * ceil_div(width, TILE_COLUMNS);
  lltm_tiles_products<<<blocks, dim3(ACROSS, DOWN, PARTS), 0, stream>>>(
      data<float>(grad_gates), data<float>(factor), data<float>(input), data<float>(grad_inputs), data<float>(grad_weight),
      static_cast<int>(rows), static_cast<int>(gates), static_cast<int>(wanted), static_cast<int>(factor.stride(0)),
      static_cast<int>(width));
  check_launch("lltm_tiles_products");
  return {grad_inputs, grad_weight};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(const std::optional<Tensor>& grad_h,
                                                    const std::optional<Tensor>& grad_c, const Tensor& weight,
                                                    const Tensor& inputs, const Tensor& gates, const Tensor& c_new) {
  const cudaStream_t stream = opwright::current_stream(gates);
  if (!is_small(c_new, std::max(weight.size(1), inputs.size(1)))) {
    const auto [grad_gates, grad_bias, grad_c_old] = backward_pointwise(grad_h, grad_c, gates, c_new);
    const auto [grad_inputs, grad_weight] = products(grad_gates, c_new, weight, inputs, stream);
    return {grad_inputs, grad_weight, grad_bias, grad_c_old};
  }
  // Some columns of a weight are as good as all.
  const Tensor factor = weight.stride(1) == 1 ? weight : opwright::contiguous(weight);
  const Tensor input = opwright::contiguous(inputs), gate = opwright::contiguous(gates), cell = opwright::contiguous(c_new);
  const auto from_h = opwright::contiguous(grad_h), from_c = opwright::contiguous(grad_c);
  std::tuple<Tensor, Tensor, Tensor, Tensor> found;
  THO_DISPATCH_V2(
      cell.scalar_type(), "gallery::lltm_backward", AT_WRAP([&] {
        using T = OnDevice<scalar_t>::type;
        found = small_backward<T>(from_h, from_c, factor, input, gate, cell, stream);
      }),
      AT_EXPAND(AT_FLOATING_TYPES), ScalarType::Half, ScalarType::BFloat16);
  return found;
}
