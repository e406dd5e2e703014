// Whether a tensor that an operator writes shares elements with another argument, or with itself: the check of opwright
// in Python (contract/overlap.py), for programs without Python.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace opwright {

// The memory of one tensor: blocks of bytes without gaps, at the sums of multiples of the strides.
struct Memory {
  int64_t start = 0, block = 0, extent = 0;               // of an empty tensor, extent is 0
  std::vector<std::pair<int64_t, int64_t>> axes;          // stride in bytes and size, smallest stride first

  explicit Memory(const torch::stable::Tensor& t) {
    const auto sizes = t.sizes(), strides = t.strides();
    void* data = nullptr;
    STD_TORCH_CHECK(aoti_torch_get_data_ptr(t.get(), &data) == 0, "no data");
    start = reinterpret_cast<int64_t>(data);
    block = static_cast<int64_t>(t.element_size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 0) return;
      if (sizes[i] > 1) axes.emplace_back(strides[i] * block, sizes[i]);
    }
    std::sort(axes.begin(), axes.end());
    extent = block;
    for (const auto& [stride, size] : axes) extent += stride * (size - 1);
    while (!axes.empty() && axes.front().first == block) {
      block *= axes.front().second;
      axes.erase(axes.begin());
    }
  }

  int64_t count() const {
    return std::accumulate(axes.begin(), axes.end(), int64_t{1}, [](int64_t n, const auto& a) { return n * a.second; });
  }

  // Where each block starts, in order.
  std::vector<int64_t> blocks() const {
    std::vector<int64_t> found{start};
    for (const auto& [stride, size] : axes) {
      const size_t before = found.size();
      for (int64_t i = 1; i < size; ++i) {
        for (size_t j = 0; j < before; ++j) found.push_back(found[j] + i * stride);
      }
    }
    std::sort(found.begin(), found.end());
    return found;
  }
};

constexpr int64_t MOST_BLOCKS = 100000;  // that are compared one by one; more that may overlap are refused

inline bool overlaps_itself(const Memory& memory) {
  int64_t reached = memory.block;
  for (const auto& [stride, size] : memory.axes) {
    if (stride == 0) return true;
    if (stride < reached) {
      if (memory.count() > MOST_BLOCKS) return true;
      const auto blocks = memory.blocks();
      for (size_t i = 1; i < blocks.size(); ++i) {
        if (blocks[i] - blocks[i - 1] < memory.block) return true;
      }
      return false;
    }
    reached = stride * (size - 1) + reached;
  }
  return false;
}

inline bool share_elements(const Memory& a, const Memory& b) {
  if (a.extent == 0 || b.extent == 0) return false;
  if (a.start >= b.start + b.extent || b.start >= a.start + a.extent) return false;
  // Blocks lie at multiples of the strides' common divisor: those of columns are told apart by it.
  int64_t step = 0;
  for (const Memory* memory : {&a, &b}) {
    for (const auto& axis : memory->axes) step = std::gcd(step, axis.first);
  }
  if (step == 0) return true;  // one block each
  const int64_t distance = ((b.start - a.start) % step + step) % step;
  if (distance >= a.block && distance + b.block <= step) return false;
  if (a.count() > MOST_BLOCKS || b.count() > MOST_BLOCKS) return true;
  const auto first = a.blocks(), second = b.blocks();
  for (size_t i = 0, j = 0; i < first.size() && j < second.size();) {
    if (first[i] + a.block <= second[j]) {
      ++i;
    } else if (second[j] + b.block <= first[i]) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

// The tensors of one call.
class Overlap {
 public:
  explicit Overlap(const char* name) : name_(name) {}

  void add(const std::string& argument, bool is_written, const std::optional<torch::stable::Tensor>& t) {
    if (t.has_value()) add(argument, is_written, *t);
  }

  void add(const std::string& argument, bool is_written, const std::vector<torch::stable::Tensor>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      add(argument + "[" + std::to_string(i) + "]", is_written, tensors[i]);
    }
  }

  void add(const std::string& name, bool is_written, const torch::stable::Tensor& t) {
    const Memory memory(t);
    if (is_written && overlaps_itself(memory)) {
      throw std::runtime_error(name_ + ": argument '" + name + "' is written, but several of its elements share an address");
    }
    for (const Place& other : places_) {
      if (!(is_written || other.is_written) || !share_elements(memory, other.memory)) continue;
      const auto& written = other.is_written ? other.name : name;
      const auto& shared = other.is_written ? name : other.name;
      throw std::runtime_error(name_ + ": argument '" + written + "' is written, and shares memory with '" + shared + "'");
    }
    places_.push_back({name, is_written, memory});
  }

 private:
  struct Place {
    std::string name;
    bool is_written;
    Memory memory;
  };

  std::string name_;
  std::vector<Place> places_;
};

}  // namespace opwright
