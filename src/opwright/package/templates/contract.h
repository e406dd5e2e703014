// The contract of an operator, checked in C++: the checks of opwright in Python (contract/binding.py), for programs
// without Python. Needs only the headers of torch's stable ABI.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace opwright {

using torch::stable::Tensor;

using Sizes = std::map<std::string, int64_t>;

// One axis of a shape, as jaxtyping writes it. REST is any number of axes.
struct Dim {
  enum Kind { NAME, BROADCAST, REST, FIXED, ANY, COMPUTED } kind;
  const char* text;
  int64_t size = 0;                          // FIXED
  int64_t (*compute)(const Sizes&) = nullptr;  // COMPUTED; throws std::out_of_range if a name is not known
};

struct division_by_zero : std::runtime_error {
  division_by_zero() : std::runtime_error("a dim of the contract divides by zero") {}
};

inline int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) throw division_by_zero();
  return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}

inline int64_t modulo(int64_t a, int64_t b) { return a - floor_divide(a, b) * b; }

inline int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) result *= base;
  return result;
}

// The checks of one call.
class Call {
 public:
  explicit Call(const char* name) : name_(name) {}

  void tensor(const std::string& argument, const Tensor& t, const char* dtype_class, uint64_t dtypes, bool shares_dtype,
              const std::vector<Dim>& dims) {
    check_dtype(argument, t, dtype_class, dtypes, shares_dtype);
    check_device(argument, t);
    check_shape(argument, t, dims);
  }

  template <class Optional, class... Rest>
  void optional(const std::string& argument, const Optional& t, Rest&&... rest) {
    if (t.has_value()) tensor(argument, *t, rest...);
  }

  template <class List, class... Rest>
  void list(const std::string& argument, const List& tensors, Rest&&... rest) {
    for (size_t i = 0; i < tensors.size(); ++i) tensor(argument + "[" + std::to_string(i) + "]", tensors[i], rest...);
  }

  void integer(const char* argument, int64_t value) { sizes_[argument] = value; }

  // Sizes that are computed from others are compared when all are known.
  void finish() {
    for (const auto& [argument, dim, size] : postponed_) {
      int64_t expected;
      try {
        expected = dim.compute(sizes_);
      } catch (const std::out_of_range&) {
        continue;  // an absent optional argument leaves a name open
      }
      if (size != expected) fail_size(argument, dim.text, expected, size);
    }
  }

  // A condition on sizes, which is compared if all its sizes are known.
  void where(const char* text, std::initializer_list<const char*> names, bool (*holds)(const Sizes&)) const {
    for (const char* name : names) {
      if (!sizes_.count(name)) return;
    }
    bool does;
    try {
      does = holds(sizes_);
    } catch (const division_by_zero&) {
      does = false;
    }
    if (!does) fail(std::string(text) + " must hold");
  }

  // Whether a kernel takes the dtypes of the call for which annotations leave a choice (of all, if there are none): the
  // floating ones (or, if there are none, all of them).
  bool takes(uint64_t dtypes) const {
    const uint64_t counted = open_ ? open_ : fixed_;
    return ((counted & FLOATING ? counted & FLOATING : counted) & ~dtypes) == 0;
  }

  [[noreturn]] void fail(const std::string& what) const { throw std::runtime_error(name_ + ": " + what); }

 private:
  struct Postponed {
    std::string argument;
    Dim dim;
    int64_t size;
  };

  static constexpr uint64_t bit(int dtype) { return uint64_t{1} << dtype; }

  void check_dtype(const std::string& argument, const Tensor& t, const char* dtype_class, uint64_t dtypes, bool shares) {
    const int dtype = static_cast<int>(t.scalar_type());
    if (!(dtypes & bit(dtype))) fail("argument '" + argument + "' must be " + dtype_class + ", got another dtype");
    (shares ? open_ : fixed_) |= bit(dtype);
    if (shares && dtypes_.emplace(dtype_class, dtype).first->second != dtype) {
      fail("argument '" + argument + "' differs in dtype from another one; all " + dtype_class + " arguments share one dtype");
    }
  }

  void check_device(const std::string& argument, const Tensor& t) {
    int32_t layout, type, index;
    STD_TORCH_CHECK(aoti_torch_get_layout(t.get(), &layout) == 0, "no layout");
    if (layout != aoti_torch_layout_strided()) fail("argument '" + argument + "' is not strided, but kernels take strided tensors");
    STD_TORCH_CHECK(aoti_torch_get_device_type(t.get(), &type) == 0, "no device");
    STD_TORCH_CHECK(aoti_torch_get_device_index(t.get(), &index) == 0, "no device");
    if (first_.empty()) {
      first_ = argument, type_ = type, index_ = index;
    } else if (type != type_ || index != index_) {
      fail("argument '" + argument + "' and argument '" + first_ + "' are on different devices");
    }
  }

  void check_shape(const std::string& argument, const Tensor& t, const std::vector<Dim>& dims) {
    const auto shape = t.sizes();
    const bool open = std::any_of(dims.begin(), dims.end(), [](const Dim& d) { return d.kind == Dim::REST; });
    const size_t least = dims.size() - open;
    if (shape.size() < least || (shape.size() > least && !open)) {
      fail("argument '" + argument + "' must have " + (open ? "at least " : "") + std::to_string(least) +
           " dims, got " + std::to_string(shape.size()));
    }
    size_t axis = 0;
    for (const Dim& dim : dims) {
      if (dim.kind == Dim::REST) {
        const size_t taken = shape.size() - least;
        check_rest(argument, dim, std::vector<int64_t>(shape.begin() + axis, shape.begin() + axis + taken));
        axis += taken;
      } else {
        check_axis(argument, dim, shape[axis++]);
      }
    }
  }

  void check_rest(const std::string& argument, const Dim& dim, const std::vector<int64_t>& actual) {
    if (std::string(dim.text) == "...") return;
    const auto& expected = rests_.emplace(dim.text, actual).first->second;
    if (expected != actual) fail("dims '" + std::string(dim.text) + "' of argument '" + argument + "' differ from an earlier argument's");
  }

  void check_axis(const std::string& argument, const Dim& dim, int64_t size) {
    switch (dim.kind) {
      case Dim::BROADCAST:
        if (size == 1) return;
        [[fallthrough]];
      case Dim::NAME: {
        std::string name = dim.kind == Dim::BROADCAST ? dim.text + 1 : dim.text;
        const size_t place = argument.rfind('[');
        if (name[0] == '?' && place != std::string::npos) name += argument.substr(place);  // its own in each tensor of a list
        const int64_t expected = sizes_.emplace(name, size).first->second;
        if (expected != size) fail_size(argument, dim.text, expected, size);
        return;
      }
      case Dim::FIXED:
        if (size != dim.size) fail_size(argument, dim.text, dim.size, size);
        return;
      case Dim::COMPUTED:
        postponed_.push_back({argument, dim, size});
        return;
      default:
        return;
    }
  }

  [[noreturn]] void fail_size(const std::string& argument, const char* dim, int64_t expected, int64_t actual) const {
    fail("dim '" + std::string(dim) + "' of argument '" + argument + "' must be " + std::to_string(expected) +
         ", got " + std::to_string(actual));
  }

  static constexpr uint64_t FLOATING = ${floating};
  std::string name_, first_;
  int32_t type_ = 0, index_ = 0;
  Sizes sizes_;
  std::map<std::string, std::vector<int64_t>> rests_;
  std::map<std::string, int> dtypes_;
  std::vector<Postponed> postponed_;
  uint64_t open_ = 0, fixed_ = 0;
};

// The outputs of an operator, from the dispatcher's stack.
template <class Result>
struct Out {
  static constexpr size_t count = 1;
  static Result of(const StableIValue* stack) { return torch::stable::detail::to<Result>(stack[0]); }
};

template <class... Each>
struct Out<std::tuple<Each...>> {
  static constexpr size_t count = sizeof...(Each);
  template <size_t... I>
  static std::tuple<Each...> in_order(const StableIValue* stack, std::index_sequence<I...>) {
    return {torch::stable::detail::to<Each>(stack[I])...};
  }
  static std::tuple<Each...> of(const StableIValue* stack) { return in_order(stack, std::index_sequence_for<Each...>{}); }
};

// An operator that only writes its arguments.
template <>
struct Out<void> {
  static constexpr size_t count = 0;
  static void of(const StableIValue*) {}
};

// Calls a kernel by the name that its own library registered.
template <class Result, class... Arguments>
Result run(const char* kernel, const Arguments&... arguments) {
  StableIValue stack[std::max(sizeof...(Arguments), Out<Result>::count)] = {torch::stable::detail::from(arguments)...};
  if (torch_call_dispatcher(kernel, "", stack, TORCH_ABI_VERSION) != 0) {
    throw std::runtime_error(std::string(kernel) + " failed; torch has logged the reason");
  }
  return Out<Result>::of(stack);
}

}  // namespace opwright
