#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/Dispatch_v2.h>

#include <cmath>
#include <tuple>
#include <vector>

using torch::stable::Tensor;

static double sum(const std::vector<double>& values) {
  double total = 0;
  for (double v : values) total += v;
  return total;
}

std::tuple<Tensor, Tensor> scaled_exp(const Tensor& x, double scale, const std::vector<double>& weights, int64_t power) {
  const Tensor in = torch::stable::contiguous(x);
  Tensor out = torch::stable::new_empty(in, in.sizes()), e = torch::stable::new_empty(in, in.sizes());
  const double factor = scale * sum(weights);
  THO_DISPATCH_V2(in.scalar_type(), "mixed::scaled_exp", ([&] {
                    const scalar_t* from = in.const_data_ptr<scalar_t>();
                    scalar_t *to = out.mutable_data_ptr<scalar_t>(), *saved = e.mutable_data_ptr<scalar_t>();
                    for (int64_t i = 0; i < in.numel(); ++i) {
                      saved[i] = std::exp(static_cast<double>(from[i]));
                      to[i] = saved[i] * factor;
                    }
                  }),
                  AT_EXPAND(AT_FLOATING_TYPES), torch::headeronly::ScalarType::Half,
                  torch::headeronly::ScalarType::BFloat16);
  return {out, e};
}

Tensor scaled_exp_backward(const Tensor& grad, const Tensor& result1, double scale, const std::vector<double>& weights) {
  const Tensor g = torch::stable::contiguous(grad), e = torch::stable::contiguous(result1);
  Tensor out = torch::stable::new_empty(g, g.sizes());
  const double factor = scale * sum(weights);
  THO_DISPATCH_V2(g.scalar_type(), "mixed::scaled_exp_backward", ([&] {
                    const scalar_t *a = g.const_data_ptr<scalar_t>(), *b = e.const_data_ptr<scalar_t>();
                    scalar_t* to = out.mutable_data_ptr<scalar_t>();
                    for (int64_t i = 0; i < g.numel(); ++i) to[i] = a[i] * b[i] * factor;
                  }),
                  AT_EXPAND(AT_FLOATING_TYPES), torch::headeronly::ScalarType::Half,
                  torch::headeronly::ScalarType::BFloat16);
  return out;
}
