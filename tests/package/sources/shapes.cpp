#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <vector>

using torch::stable::Tensor;

// Each gives x, with its first element replaced: by 1 for single precision, 2 for double.
template <class T>
static Tensor marked(const Tensor& x, T mark) {
  Tensor out = torch::stable::clone(torch::stable::contiguous(x));
  if (out.numel() > 0) out.mutable_data_ptr<T>()[0] = mark;
  return out;
}

Tensor first(const Tensor& x, const Tensor& y, const std::vector<Tensor>& parts, const std::optional<Tensor>& index,
             const std::optional<Tensor>& pair, int64_t k) {
  return marked<float>(x, 1);
}

Tensor second(const Tensor& x, const Tensor& y, const std::vector<Tensor>& parts, const std::optional<Tensor>& index,
              const std::optional<Tensor>& pair, int64_t k) {
  return marked<double>(x, 2);
}
