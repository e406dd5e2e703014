// AdamW of a list of tensors in one launch, in place. A block updates CHUNK neighbouring elements of one tensor.
#include "rows.cuh"

constexpr int THREADS = 256;
constexpr int WIDTH = 4, ROUNDS = 4;  // elements that a thread loads at once: 16 bytes of float32, and how often
constexpr int CHUNK = THREADS * WIDTH * ROUNDS;

struct Rates {  // as the launcher computes them, in double
  float beta1, beta2, kept, step, root, eps;
};

// The last of `count` tensors that begins at this block or before it. Tensors without elements have no block.
__device__ int tensor_of(const long long* first_blocks, int count, long long block) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first_blocks[middle] <= block ? low : high) = middle;
  }
  return low;
}

// T is the type of parameters and gradients, M that of moments.
template <class T, class M>
__device__ void update(T& parameter, T gradient, M& first, M& second, const Rates& rates) {
  const float g = static_cast<float>(gradient);
  float mean = static_cast<float>(first), square = static_cast<float>(second);
  mean += (1.f - rates.beta1) * (g - mean);
  square += (1.f - rates.beta2) * (g * g - square);
  const float step = rates.step * mean / (sqrtf(square) * rates.root + rates.eps);
  parameter = static_cast<T>(static_cast<float>(parameter) * rates.kept - step);
  first = static_cast<M>(mean);
  second = static_cast<M>(square);
}

// `tensors` has the addresses of all parameters, then those of all gradients, first moments and second moments.
template <class T, class M>
__global__ void __launch_bounds__(THREADS)
    adamw(void* const* tensors, const long long* sizes, const long long* first_blocks, int count, float beta1, float beta2,
          float kept, float step, float root, float eps) {
  const Rates rates{beta1, beta2, kept, step, root, eps};
  const int at = tensor_of(first_blocks, count, blockIdx.x);
  T* parameters = static_cast<T*>(tensors[at]);
  const T* gradients = static_cast<const T*>(tensors[at + count]);
  M* first = static_cast<M*>(tensors[at + 2 * count]);
  M* second = static_cast<M*>(tensors[at + 3 * count]);
  const long long size = sizes[at], start = (blockIdx.x - first_blocks[at]) * CHUNK;
  const auto addresses = reinterpret_cast<size_t>(parameters) | reinterpret_cast<size_t>(gradients) |
                         reinterpret_cast<size_t>(first) | reinterpret_cast<size_t>(second);
  if (addresses % 16 != 0 || start + CHUNK > size) {
    const long long end = min(start + CHUNK, size);
    for (long long i = start + threadIdx.x; i < end; i += THREADS)
      update(parameters[i], gradients[i], first[i], second[i], rates);
    return;
  }
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const long long i = start + (r * THREADS + threadIdx.x) * WIDTH;
    Pack<T, WIDTH> parameter = load<WIDTH>(parameters + i);
    const Pack<T, WIDTH> gradient = load<WIDTH>(gradients + i);
    Pack<M, WIDTH> one = load<WIDTH>(first + i), two = load<WIDTH>(second + i);
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) update(parameter.value[e], gradient.value[e], one.value[e], two.value[e], rates);
    store(parameters + i, parameter);
    store(first + i, one);
    store(second + i, two);
  }
}
