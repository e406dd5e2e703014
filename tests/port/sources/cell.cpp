// A cell as extensions have it: operators that torch's stable header lacks, narrow numbers, a list of results.
#include <torch/extension.h>

#include <vector>

#include "cell.h"

namespace cell {

torch::Tensor d_sigmoid(torch::Tensor z) {
  auto s = torch::sigmoid(z);
  return (1 - s) * s;
}

std::vector<torch::Tensor> forward(
    torch::Tensor input, torch::Tensor weights, torch::Tensor bias, torch::Tensor& state, int parts, float slope) {
  CHECK_FLAT(input);
  TORCH_CHECK(parts == 2, "two parts, but got ", parts);
  auto x = torch::cat({state, input}, 1);
  auto gates = torch::addmm(bias, x, weights.transpose(0, 1)).chunk(parts, 1);
  auto gate = d_sigmoid(gates[0]);
  auto candidate = torch::elu(gates[1], slope) + gates[1].clamp(0, 1) - 2;
  const auto opts = input.options().dtype(torch::kFloat);
  torch::Tensor sums = torch::zeros({input.size(0)}, opts);
  AT_DISPATCH_FLOATING_TYPES(candidate.scalar_type(), "forward", [&] {
    auto rows = candidate.accessor<scalar_t, 2>();
    float* out = sums.data_ptr<float>();
    for (int64_t i = 0; i < candidate.size(0); i++) {
      scalar_t sum = 0, least = slope;
      for (int64_t j = 0; j < candidate.size(1); j++) sum += rows[i][j] * least;
      out[i] = static_cast<float>(sum);
    }
  });
  if (sums.numel() > 0) sums[0] = candidate.sum() * 2.5;
  return {gate * candidate, sums};
}

}  // namespace cell

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &cell::forward, "forward"); }
