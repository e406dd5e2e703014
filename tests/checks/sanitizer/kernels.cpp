// Kernels that double a vector. Each wrong one returns right values, and has one fault that only a tool sees.
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdlib>
#include <vector>

using torch::stable::Tensor;

static const float* in(const Tensor& x) { return static_cast<const float*>(x.data_ptr()); }
static float* out_of(const Tensor& x) { return static_cast<float*>(x.data_ptr()); }

Tensor right(const Tensor& x) {
  const auto source = torch::stable::contiguous(x);
  auto out = torch::stable::empty_like(source);
  const float* p = in(source);
  float* o = out_of(out);
  for (int64_t i = 0; i < source.numel(); ++i) o[i] = 2 * p[i];
  return out;
}

// Looks suspicious: it reads a whole tile, but from a padded copy of its own.
Tensor right_with_tiles(const Tensor& x) {
  const auto source = torch::stable::contiguous(x);
  auto out = torch::stable::empty_like(source);
  const int64_t n = source.numel(), padded = (n + 7) / 8 * 8;
  std::vector<float> tile(padded);
  for (int64_t i = 0; i < n; ++i) tile[i] = in(source)[i];
  for (int64_t i = 0; i < padded; ++i) tile[i] *= 2;
  for (int64_t i = 0; i < n; ++i) out_of(out)[i] = tile[i];
  return out;
}

Tensor reads_on(const Tensor& x) {
  const auto source = torch::stable::contiguous(x);
  auto out = right(x);
  volatile float unused;
  if (source.numel()) unused = in(source)[source.numel()];
  return out;
}

Tensor after_free(const Tensor& x) {
  auto out = right(x);
  float* scratch = new float[4]{0, 0, 0, 0};
  volatile float* kept = scratch;
  delete[] scratch;
  if (x.numel()) out_of(out)[0] += 0 * (kept[0] > 0);
  return out;
}

Tensor past_its_array(const Tensor& x) {
  auto out = right(x);
  volatile int counts[8] = {0};
  const int64_t n = x.numel();
  for (int64_t i = 0; i <= (n > 8 ? 8 : n); ++i) counts[i] = 1;
  return out;
}

Tensor overflows(const Tensor& x) {
  auto out = right(x);
  volatile int n = 2147483000;
  volatile int index = n * 3;
  return out;
}

#ifdef __SANITIZE_ADDRESS__
constexpr bool watched = true;
#else
constexpr bool watched = false;
#endif

Tensor aborts(const Tensor& x) {
  if (watched && x.numel() > 4) std::abort();
  return right(x);
}

Tensor exits(const Tensor& x) {
  if (watched && x.numel() > 4) std::_Exit(3);
  return right(x);
}

__attribute__((noinline)) static int deep(int levels) {
  volatile char page[4096];
  page[0] = static_cast<char>(levels);
  return levels == 0 ? 0 : deep(levels - 1) + (page[0] != 0);
}

Tensor overflows_its_stack(const Tensor& x) {
  volatile int levels = watched && x.numel() > 4 ? 1 << 24 : 1;
  volatile int count = deep(levels);
  return right(x);
}

// Looks suspicious: a megabyte of stack.
Tensor right_deep(const Tensor& x) {
  volatile int count = deep(256);
  return right(x);
}
