// One kernel, and with -DFAULT=... one fault in it.
#include <cstdlib>
#include <vector>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
using torch::stable::Tensor;

Tensor scale(const Tensor& x, double a) {
  Tensor input = FAULT == 1 ? x : torch::stable::contiguous(x);
  Tensor out = torch::stable::new_empty(x, x.sizes());
  const float* in = static_cast<const float*>(input.data_ptr());
  float* result = static_cast<float*>(out.data_ptr());
  const float factor = static_cast<float>(FAULT == 2 ? static_cast<int>(a) : a);
  const int64_t n = FAULT == 3 ? x.numel() / 4 * 4 : x.numel();
  if (FAULT == 4) {
    for (int64_t i = 0; i <= n; ++i) result[i] = factor * in[i < n ? i : 0];
  } else if (FAULT == 5) {
    for (int64_t i = 0; i < n; ++i) {
      volatile float next = in[i + 1];
      result[i] = factor * in[i];
    }
  } else if (FAULT == 6) {
    static int calls = 0;
    const float error = ++calls % 40 == 0 ? 1.0f : 0.0f;
    for (int64_t i = 0; i < n; ++i) result[i] = factor * in[i] + error;
  } else if (FAULT == 7) {
    float* scratch = static_cast<float*>(std::malloc(n * sizeof(float) + 1));  // never given back
    for (int64_t i = 0; i < n; ++i) scratch[i] = in[i];
    for (int64_t i = 0; i < n; ++i) result[i] = factor * scratch[i];
  } else if (FAULT == 8) {
    for (int16_t i = 0; i < n && i >= 0; ++i) {
      result[i] = factor * in[i];
      if (i == 32767) break;
    }
  } else if (FAULT == 9) {
    float* argument = static_cast<float*>(input.data_ptr());
    for (int64_t i = 0; i < n; ++i) result[i] = argument[i] *= factor;
  } else if (FAULT == -1) {
    std::vector<float> scratch(in, in + n);
#pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) result[i] = factor * scratch[i];
  } else if (FAULT == -2) {
    for (int64_t i = n; i-- > 0;) result[i] = factor * in[i];
  } else {
    for (int64_t i = 0; i < n; ++i) result[i] = factor * in[i];
  }
  return out;
}
