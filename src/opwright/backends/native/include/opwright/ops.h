// ATen's operators for host functions on torch's stable ABI, called through torch's dispatcher: what sources need that
// were written on at::Tensor. `opwright port` writes calls of these, and declares others beside a source.
//
// Numbers: torch's stable ABI cannot pass a Scalar. Operators that take one are called with a tensor of no dims in its
// place where ATen has such a form, and are put together from others below where it has none.
#pragma once
#include <opwright/tensor.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/Dispatch_v2.h>
#include <torch/headeronly/core/Layout.h>
#include <torch/headeronly/core/MemoryFormat.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/core/TensorAccessor.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/HeaderOnlyArrayRef.h>
#include <torch/headeronly/util/shim_utils.h>
#include <torch/headeronly/version.h>

// What ATen's headers bring besides, and sources use without naming it.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

// What torch 2.11 and 2.12 lack of these headers.
#ifndef STABLE_TORCH_ERROR_CODE_CHECK
#define STABLE_TORCH_ERROR_CODE_CHECK(call) TORCH_ERROR_CODE_CHECK(call)
#endif
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
namespace c10 {
template <class T>
constexpr bool operator==(HeaderOnlyArrayRef<T> a, HeaderOnlyArrayRef<T> b) {
  return a.equals(b);
}
template <class T>
constexpr bool operator!=(HeaderOnlyArrayRef<T> a, HeaderOnlyArrayRef<T> b) {
  return !a.equals(b);
}
}  // namespace c10
#endif

namespace opwright {
namespace {  // nothing here is shared with another shared object, which may contain another version

using torch::headeronly::DeviceType;
using torch::headeronly::IntHeaderOnlyArrayRef;
using torch::headeronly::Layout;
using torch::headeronly::MemoryFormat;
using torch::headeronly::ScalarType;
using torch::stable::Device;
using torch::stable::Tensor;

// -- arguments ------------------------------------------------------------------------------------------------------

template <class T>
using IfNumber = std::enable_if_t<
    std::is_arithmetic_v<T> || std::is_same_v<T, torch::headeronly::Half> ||
        std::is_same_v<T, torch::headeronly::BFloat16>,
    int>;

// A number: at::Scalar.
class Number {
 public:
  template <class T, IfNumber<T> = 0>
  Number(T value)
      : integer_(static_cast<int64_t>(value)), real_(static_cast<double>(value)),
        kind_(std::is_same_v<T, bool> ? Kind::boolean : std::is_integral_v<T> ? Kind::integer : Kind::real) {}

  bool is_real() const { return kind_ == Kind::real; }
  bool is_boolean() const { return kind_ == Kind::boolean; }
  template <class T>
  T to() const { return is_real() ? static_cast<T>(real_) : static_cast<T>(integer_); }
  Number operator-() const { return is_real() ? Number(-real_) : Number(-integer_); }

 private:
  enum class Kind { boolean, integer, real };
  int64_t integer_;
  double real_;
  Kind kind_;
};

// Sizes, strides or dims: one number stands for a list of one, as in ATen.
class Integers {
 public:
  template <class T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
  Integers(T one) : values_{static_cast<int64_t>(one)} {}
  Integers(std::initializer_list<int64_t> values) : values_(values) {}
  template <class T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
  Integers(const std::vector<T>& values) : values_(values.begin(), values.end()) {}
  Integers(IntHeaderOnlyArrayRef values) : values_(values.begin(), values.end()) {}

  operator IntHeaderOnlyArrayRef() const { return IntHeaderOnlyArrayRef(values_.data(), values_.size()); }
  const std::vector<int64_t>& vec() const { return values_; }

 private:
  std::vector<int64_t> values_;
};

class OptionalIntegers {
 public:
  OptionalIntegers(std::nullopt_t = std::nullopt) {}
  template <class T, std::enable_if_t<std::is_constructible_v<Integers, T>, int> = 0>
  OptionalIntegers(T&& values) : values_(Integers(std::forward<T>(values)).vec()) {}
  OptionalIntegers(std::initializer_list<int64_t> values) : values_(values) {}

  const std::optional<std::vector<int64_t>>& value() const { return values_; }

 private:
  std::optional<std::vector<int64_t>> values_;
};

// Dtype and device of a new tensor: at::TensorOptions.
struct Options {
  std::optional<ScalarType> dtype_;
  std::optional<Layout> layout_;
  std::optional<Device> device_;
  std::optional<bool> pinned_;

  Options() = default;
  Options(ScalarType dtype) : dtype_(dtype) {}
  Options(Device device) : device_(device) {}
  Options(DeviceType device) : device_(Device(device)) {}

  Options dtype(std::optional<ScalarType> dtype) const { Options made = *this; made.dtype_ = dtype; return made; }
  Options layout(std::optional<Layout> layout) const { Options made = *this; made.layout_ = layout; return made; }
  Options device(std::optional<Device> device) const { Options made = *this; made.device_ = device; return made; }
  Options device(DeviceType type, int32_t index = -1) const { return device(Device(type, index)); }
  Options pinned_memory(bool pinned) const { Options made = *this; made.pinned_ = pinned; return made; }
  Options requires_grad(bool) const { return *this; }  // results of a kernel require none
};

[[maybe_unused]] Options dtype(ScalarType dtype) { return Options(dtype); }
[[maybe_unused]] Options device(DeviceType type, int32_t index = -1) { return Options().device(type, index); }
[[maybe_unused]] Options device(Device device) { return Options(device); }
[[maybe_unused]] Options options(const Tensor& like) {
  return Options(like.scalar_type()).layout(like.layout()).device(like.device());
}

// -- calls through torch's dispatcher -------------------------------------------------------------------------------

template <class T>
StableIValue packed(const T& value) { return torch::stable::detail::from(value); }
[[maybe_unused]] StableIValue packed(const Integers& value) { return torch::stable::detail::from(value.vec()); }
[[maybe_unused]] StableIValue packed(const OptionalIntegers& value) {
  return torch::stable::detail::from(value.value());
}

template <class T>
struct Unpacked {
  static constexpr std::size_t count = 1;
  static T from(const StableIValue* stack) { return torch::stable::detail::to<T>(stack[0]); }
};
template <>
struct Unpacked<void> {
  static constexpr std::size_t count = 0;
  static void from(const StableIValue*) {}
};
template <class... T>
struct Unpacked<std::tuple<T...>> {
  static constexpr std::size_t count = sizeof...(T);
  static std::tuple<T...> from(const StableIValue* stack) { return each(stack, std::index_sequence_for<T...>()); }
  template <std::size_t... i>
  static std::tuple<T...> each(const StableIValue* stack, std::index_sequence<i...>) {
    return std::tuple<T...>(torch::stable::detail::to<T>(stack[i])...);
  }
};

// Calls an operator with all arguments of its schema, as in call<Tensor>("aten::mul", "Tensor", a, b).
template <class Result, class... Arguments>
Result call(const char* name, const char* overload, const Arguments&... arguments) {
  constexpr std::size_t size = std::max({sizeof...(Arguments), Unpacked<Result>::count, std::size_t{1}});
  std::array<StableIValue, size> stack{packed(arguments)...};
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
  return Unpacked<Result>::from(stack.data());
}

// -- numbers --------------------------------------------------------------------------------------------------------

[[maybe_unused]] bool is_complex(ScalarType type) {
  return type == ScalarType::ComplexHalf || type == ScalarType::ComplexFloat || type == ScalarType::ComplexDouble;
}
[[maybe_unused]] bool is_integral(ScalarType type) {
  switch (type) {
    case ScalarType::Byte: case ScalarType::Char: case ScalarType::Short: case ScalarType::Int: case ScalarType::Long:
    case ScalarType::Bool: case ScalarType::UInt16: case ScalarType::UInt32: case ScalarType::UInt64: return true;
    default: return false;
  }
}

// A tensor of no dims with a number.
[[maybe_unused]] Tensor number(Number value, ScalarType type) {
  Tensor made = torch::stable::empty(
      {}, type, std::nullopt, std::optional<Device>(Device(DeviceType::CPU)), std::nullopt, std::nullopt);
  void* data = made.mutable_data_ptr();
  switch (type) {
    case ScalarType::Double: *static_cast<double*>(data) = value.to<double>(); break;
    case ScalarType::Float: *static_cast<float*>(data) = value.to<float>(); break;
    case ScalarType::Long: *static_cast<int64_t*>(data) = value.to<int64_t>(); break;
    case ScalarType::Int: *static_cast<int32_t*>(data) = value.to<int32_t>(); break;
    case ScalarType::Bool: *static_cast<bool*>(data) = value.to<bool>(); break;
    default: {  // rounded by torch
      Tensor exact = number(value, value.is_real() ? ScalarType::Double : ScalarType::Long);
      return torch::stable::to(
          exact, std::optional<ScalarType>(type), std::nullopt, std::nullopt, std::nullopt, false, false, std::nullopt);
    }
  }
  return made;
}

// A number beside a tensor: of a dtype with which torch computes the result that it gives for the number itself.
[[maybe_unused]] Tensor number_beside(const Tensor& other, Number value) {
  const ScalarType type = other.scalar_type();
  if (is_complex(type)) return number(value, other.dim() ? ScalarType::Double : type);
  if (!is_integral(type)) return number(value, other.dim() ? ScalarType::Double : type);
  if (value.is_real()) return number(value, ScalarType::Float);  // the default dtype, which is not known here
  if (type == ScalarType::Bool) return number(value, value.is_boolean() ? ScalarType::Bool : ScalarType::Long);
  return number(value, type);
}

// -- tensors --------------------------------------------------------------------------------------------------------

[[maybe_unused]] Tensor to(
    const Tensor& self, std::optional<ScalarType> dtype, std::optional<Device> device = std::nullopt,
    bool non_blocking = false, bool copy = false) {
  return torch::stable::to(self, dtype, std::nullopt, device, std::nullopt, non_blocking, copy, std::nullopt);
}
[[maybe_unused]] Tensor to(const Tensor& self, ScalarType dtype, bool non_blocking = false, bool copy = false) {
  return opwright::to(self, std::optional<ScalarType>(dtype), std::nullopt, non_blocking, copy);
}
[[maybe_unused]] Tensor to(const Tensor& self, Device device, bool non_blocking = false, bool copy = false) {
  return opwright::to(self, std::nullopt, std::optional<Device>(device), non_blocking, copy);
}
[[maybe_unused]] Tensor to(const Tensor& self, DeviceType device, bool non_blocking = false, bool copy = false) {
  return opwright::to(self, Device(device), non_blocking, copy);
}
[[maybe_unused]] Tensor to(const Tensor& self, DeviceType device, ScalarType dtype, bool non_blocking = false) {
  return opwright::to(self, std::optional<ScalarType>(dtype), std::optional<Device>(Device(device)), non_blocking);
}
[[maybe_unused]] Tensor to(const Tensor& self, Device device, ScalarType dtype, bool non_blocking = false) {
  return opwright::to(self, std::optional<ScalarType>(dtype), std::optional<Device>(device), non_blocking);
}
[[maybe_unused]] Tensor to(const Tensor& self, const Options& options, bool non_blocking = false) {
  return opwright::to(self, options.dtype_, options.device_, non_blocking);
}
[[maybe_unused]] Tensor cpu(const Tensor& self) { return opwright::to(self, DeviceType::CPU); }
[[maybe_unused]] Tensor cuda(const Tensor& self) { return opwright::to(self, DeviceType::CUDA); }

// The element of a tensor that has one. It waits for a GPU.
template <class T>
T item(const Tensor& self) {
  STD_TORCH_CHECK(self.numel() == 1, "item() of a tensor with ", self.numel(), " elements");
  const ScalarType type = is_integral(self.scalar_type()) ? ScalarType::Long : ScalarType::Double;
  const Tensor here = opwright::to(self.is_cpu() ? self : opwright::cpu(self), type);
  return is_integral(self.scalar_type()) ? static_cast<T>(*static_cast<const int64_t*>(here.data_ptr()))
                                         : static_cast<T>(*static_cast<const double*>(here.data_ptr()));
}

template <class T, std::size_t N>
auto accessor(const Tensor& self) {
  STD_TORCH_CHECK(self.dim() == N, "an accessor of ", N, " dims, but the tensor has ", self.dim());
  return torch::headeronly::HeaderOnlyTensorAccessor<T, N>(
      self.mutable_data_ptr<T>(), self.sizes().data(), self.strides().data());
}

template <class T, std::size_t N, template <class> class Traits = torch::headeronly::DefaultPtrTraits,
          class Index = int64_t>
auto packed_accessor(const Tensor& self) {
  STD_TORCH_CHECK(self.dim() == N, "an accessor of ", N, " dims, but the tensor has ", self.dim());
  STD_TORCH_CHECK(
      self.numel() <= static_cast<int64_t>(std::numeric_limits<Index>::max()),
      "an accessor with indices of ", 8 * sizeof(Index), " bits, but the tensor has ", self.numel(), " elements");
  return torch::headeronly::HeaderOnlyGenericPackedTensorAccessor<T, N, Traits, Index>(
      self.mutable_data_ptr<T>(), self.sizes().data(), self.strides().data());
}
template <class T, std::size_t N, template <class> class Traits = torch::headeronly::DefaultPtrTraits>
auto packed_accessor32(const Tensor& self) { return packed_accessor<T, N, Traits, int32_t>(self); }
template <class T, std::size_t N, template <class> class Traits = torch::headeronly::DefaultPtrTraits>
auto packed_accessor64(const Tensor& self) { return packed_accessor<T, N, Traits, int64_t>(self); }

// x[i], a view.
template <class T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
Tensor at(const Tensor& self, T index) {
  return call<Tensor>("aten::select", "int", self, int64_t{0}, static_cast<int64_t>(index));
}
[[maybe_unused]] Tensor at(const Tensor& self, const Tensor& index) { return at(self, item<int64_t>(index)); }

// The type in which numbers of a type are added and multiplied: at::opmath_type, at::acc_type.
template <class T>
struct Wider { using type = T; };
template <>
struct Wider<torch::headeronly::Half> { using type = float; };
template <>
struct Wider<torch::headeronly::BFloat16> { using type = float; };
template <class T>
using opmath_type = typename Wider<T>::type;
template <class T, bool on_gpu>
using acc_type = std::conditional_t<
    std::is_integral_v<T>, int64_t,
    std::conditional_t<!on_gpu && std::is_same_v<T, float>, double, opmath_type<T>>>;

// An integer of a narrower type, for functions that take one.
template <class T>
T narrowed(int64_t value) {
  if constexpr (std::is_unsigned_v<T>) {
    STD_TORCH_CHECK(
        value >= 0 && static_cast<uint64_t>(value) <= std::numeric_limits<T>::max(), "the function takes an integer of ",
        8 * sizeof(T), " bits without a sign, but got ", value);
  } else {
    STD_TORCH_CHECK(
        value >= std::numeric_limits<T>::min() && value <= std::numeric_limits<T>::max(),
        "the function takes an integer of ", 8 * sizeof(T), " bits, but got ", value);
  }
  return static_cast<T>(value);
}

// A tensor around memory that the caller keeps, and one of given numbers.
[[maybe_unused]] Tensor from_blob(void* data, const Integers& sizes, const Options& options = {}) {
  std::vector<int64_t> strides(sizes.vec().size(), 1);
  for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes.vec()[d];
  return torch::stable::from_blob(
      data, sizes, IntHeaderOnlyArrayRef(strides.data(), strides.size()), options.device_.value_or(Device(DeviceType::CPU)),
      options.dtype_.value_or(ScalarType::Float));
}
template <class T>
Tensor tensor(const std::vector<T>& values, const Options& options = {}) {
  const ScalarType type = std::is_integral_v<T> ? ScalarType::Long : ScalarType::Double;
  const std::optional<Device> here = Device(DeviceType::CPU);
  const Tensor made = torch::stable::empty(
      {static_cast<int64_t>(values.size())}, type, std::nullopt, here, std::nullopt, std::nullopt);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if constexpr (std::is_integral_v<T>) {
      static_cast<int64_t*>(made.mutable_data_ptr())[i] = static_cast<int64_t>(values[i]);
    } else {
      static_cast<double*>(made.mutable_data_ptr())[i] = static_cast<double>(values[i]);
    }
  }
  const ScalarType chosen = options.dtype_.value_or(std::is_integral_v<T> ? ScalarType::Long : ScalarType::Float);
  return opwright::to(made, std::optional<ScalarType>(chosen), options.device_);
}
template <class T>
Tensor tensor(std::initializer_list<T> values, const Options& options = {}) {
  return tensor(std::vector<T>(values), options);
}

// The results of a function that may leave some out, for an operator that always returns them.
[[maybe_unused]] Tensor required(const Tensor& value) { return value; }
[[maybe_unused]] Tensor required(const std::optional<Tensor>& value) {
  STD_TORCH_CHECK(value.has_value(), "the function left out a result that the operator always returns");
  return *value;
}
template <class... T>
auto all_required(const std::tuple<T...>& values) {
  return std::apply([](const auto&... each) { return std::make_tuple(required(each)...); }, values);
}

// The tensors of a vector as a tuple.
template <std::size_t... i>
auto as_tuple(const std::vector<Tensor>& values, std::index_sequence<i...>) {
  STD_TORCH_CHECK(
      values.size() == sizeof...(i), "the function returned ", values.size(), " tensors in place of ", sizeof...(i));
  return std::make_tuple(values[i]...);
}

// -- operators without a form that the stable ABI can call ------------------------------------------------------------

}  // namespace
namespace aten {
namespace {

[[maybe_unused]] ScalarType result_type(const Tensor& a, const Tensor& b) {
  return call<ScalarType>("aten::result_type", "Tensor", a, b);
}

[[maybe_unused]] Tensor mul(const Tensor& self, const Tensor& other) {
  return call<Tensor>("aten::mul", "Tensor", self, other);
}
[[maybe_unused]] Tensor mul(const Tensor& self, Number other) { return mul(self, number_beside(self, other)); }
[[maybe_unused]] Tensor neg(const Tensor& self) { return call<Tensor>("aten::neg", "", self); }

// Sums of integers: torch's stable subtract takes its factor as a double, which integers refuse.
[[maybe_unused]] Tensor add_integers(const Tensor& self, const Tensor& other, ScalarType type) {
  if (type == ScalarType::Bool) return call<Tensor>("aten::logical_or", "", self, other);
  const std::vector<Tensor> both = call<std::vector<Tensor>>(
      "aten::broadcast_tensors", "", std::vector<Tensor>{opwright::to(self, type), opwright::to(other, type)});
  const Tensor stacked = call<Tensor>("aten::stack", "", both, int64_t{0});
  return call<Tensor>(
      "aten::sum", "dim_IntList", stacked, OptionalIntegers{0}, false, std::optional<ScalarType>(type));
}

// torch's stable subtract refuses truth values, which addition takes for numbers.
[[maybe_unused]] Tensor numeric(const Tensor& self, ScalarType type) {
  return self.scalar_type() == ScalarType::Bool ? opwright::to(self, type) : self;
}

[[maybe_unused]] Tensor add(const Tensor& self, const Tensor& other, Number alpha = 1) {
  const ScalarType type = result_type(self, other);
  if (!is_integral(type)) {
    return torch::stable::subtract(numeric(self, type), numeric(other, type), -alpha.to<double>());
  }
  return add_integers(self, alpha.to<double>() == 1 ? other : mul(other, alpha), type);
}
[[maybe_unused]] Tensor add(const Tensor& self, Number other, Number alpha = 1) {
  return add(self, number_beside(self, other), alpha);
}
[[maybe_unused]] Tensor sub(const Tensor& self, const Tensor& other, Number alpha = 1) {
  const ScalarType type = result_type(self, other);
  if (!is_integral(type)) return torch::stable::subtract(self, other, alpha.to<double>());
  return add(self, neg(mul(opwright::to(other, type), alpha)));
}
[[maybe_unused]] Tensor sub(const Tensor& self, Number other, Number alpha = 1) {
  return sub(self, number_beside(self, other), alpha);
}
[[maybe_unused]] Tensor rsub(const Tensor& self, Number other) { return sub(number_beside(self, other), self); }

[[maybe_unused]] Tensor copy_(const Tensor& self, const Tensor& source, bool non_blocking = false) {
  return call<Tensor>("aten::copy_", "", self, source, non_blocking);
}
[[maybe_unused]] Tensor fill_(const Tensor& self, Number value) { return copy_(self, number_beside(self, value)); }
[[maybe_unused]] Tensor fill_(const Tensor& self, const Tensor& value) { return copy_(self, value); }
template <class Other>
Tensor add_(const Tensor& self, const Other& other, Number alpha = 1) { return copy_(self, add(self, other, alpha)); }
template <class Other>
Tensor sub_(const Tensor& self, const Other& other, Number alpha = 1) { return copy_(self, sub(self, other, alpha)); }

// Of numbers, as in ATen: without a dtype, an integer gives int64.
[[maybe_unused]] Tensor full(const Integers& size, Number value, const Options& options = {}) {
  const ScalarType type = options.dtype_.value_or(
      value.is_real() ? ScalarType::Float : value.is_boolean() ? ScalarType::Bool : ScalarType::Long);
  return fill_(torch::stable::empty(size, std::optional<ScalarType>(type), options.layout_, options.device_,
                                    options.pinned_, std::nullopt), value);
}
[[maybe_unused]] Tensor full_like(const Tensor& self, Number value, const Options& given = {}) {
  return fill_(call<Tensor>("aten::empty_like", "", self, given.dtype_, given.layout_, given.device_, given.pinned_,
                            std::optional<MemoryFormat>()), value);
}
[[maybe_unused]] Tensor arange(Number start, Number end, const Options& options = {}) {
  const bool real = start.is_real() || end.is_real();
  const ScalarType type = options.dtype_.value_or(real ? ScalarType::Float : ScalarType::Long);
  const double length = end.to<double>() - start.to<double>();
  const int64_t count = length > 0 ? static_cast<int64_t>(length) + (static_cast<double>(static_cast<int64_t>(length)) < length) : 0;
  const Tensor ones = full({count}, 1, options.dtype(real ? ScalarType::Double : ScalarType::Long));
  const Tensor counted = call<Tensor>("aten::cumsum", "", ones, int64_t{0}, std::optional<ScalarType>());
  return opwright::to(add(counted, real ? Number(start.to<double>() - 1) : Number(start.to<int64_t>() - 1)), type);
}
[[maybe_unused]] Tensor arange(Number end, const Options& options = {}) { return arange(0, end, options); }

[[maybe_unused]] Tensor addmm(
    const Tensor& self, const Tensor& a, const Tensor& b, Number beta = 1, Number alpha = 1) {
  const Tensor product = call<Tensor>("aten::mm", "", a, b);
  const Tensor scaled = alpha.to<double>() == 1 ? product : mul(product, alpha);
  if (beta.to<double>() == 0) return scaled;  // NaN in self is ignored then
  return add(scaled, beta.to<double>() == 1 ? self : mul(self, beta));
}
[[maybe_unused]] Tensor baddbmm(
    const Tensor& self, const Tensor& a, const Tensor& b, Number beta = 1, Number alpha = 1) {
  const Tensor product = call<Tensor>("aten::bmm", "", a, b);
  const Tensor scaled = alpha.to<double>() == 1 ? product : mul(product, alpha);
  if (beta.to<double>() == 0) return scaled;
  return add(scaled, beta.to<double>() == 1 ? self : mul(self, beta));
}
[[maybe_unused]] Tensor is_positive(const Tensor& self) {
  return call<Tensor>("aten::gt", "Tensor", self, number_beside(self, 0));
}
[[maybe_unused]] Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  return call<Tensor>("aten::where", "self", condition, self, other);
}
[[maybe_unused]] Tensor elu(const Tensor& self, Number alpha = 1, Number scale = 1, Number input_scale = 1) {
  const Tensor below = mul(call<Tensor>("aten::expm1", "", mul(self, input_scale)), Number(alpha.to<double>() * scale.to<double>()));
  return where(is_positive(self), mul(self, scale), below);
}
[[maybe_unused]] Tensor leaky_relu(const Tensor& self, Number negative_slope = 0.01) {
  return where(is_positive(self), self, mul(self, negative_slope));
}

}  // namespace
}  // namespace aten
namespace {

// What is assigned to x[i] is written into x.
[[maybe_unused]] void write(const Tensor& view, const Tensor& value) { aten::copy_(view, value); }
[[maybe_unused]] void write(const Tensor& view, Number value) { aten::fill_(view, value); }

// -- operators between tensors and numbers ----------------------------------------------------------------------------

#define OPWRIGHT_BINARY(symbol, of_tensors)                                                                          \
  [[maybe_unused]] Tensor operator symbol(const Tensor& a, const Tensor& b) { return of_tensors; }                    \
  template <class T, IfNumber<T> = 0>                                                                                 \
  Tensor operator symbol(const Tensor& a, T number) { const Tensor b = number_beside(a, number); return of_tensors; } \
  template <class T, IfNumber<T> = 0>                                                                                 \
  Tensor operator symbol(T number, const Tensor& b) { const Tensor a = number_beside(b, number); return of_tensors; }
OPWRIGHT_BINARY(+, aten::add(a, b))
OPWRIGHT_BINARY(-, aten::sub(a, b))
OPWRIGHT_BINARY(*, aten::mul(a, b))
OPWRIGHT_BINARY(/, (call<Tensor>("aten::div", "Tensor", a, b)))
OPWRIGHT_BINARY(%, (call<Tensor>("aten::remainder", "Tensor", a, b)))
OPWRIGHT_BINARY(&, (call<Tensor>("aten::bitwise_and", "Tensor", a, b)))
OPWRIGHT_BINARY(|, (call<Tensor>("aten::bitwise_or", "Tensor", a, b)))
OPWRIGHT_BINARY(^, (call<Tensor>("aten::bitwise_xor", "Tensor", a, b)))
OPWRIGHT_BINARY(==, (call<Tensor>("aten::eq", "Tensor", a, b)))
OPWRIGHT_BINARY(!=, (call<Tensor>("aten::ne", "Tensor", a, b)))
OPWRIGHT_BINARY(<, (call<Tensor>("aten::lt", "Tensor", a, b)))
OPWRIGHT_BINARY(<=, (call<Tensor>("aten::le", "Tensor", a, b)))
OPWRIGHT_BINARY(>, (call<Tensor>("aten::gt", "Tensor", a, b)))
OPWRIGHT_BINARY(>=, (call<Tensor>("aten::ge", "Tensor", a, b)))
#undef OPWRIGHT_BINARY

[[maybe_unused]] Tensor operator-(const Tensor& self) { return aten::neg(self); }
[[maybe_unused]] Tensor operator~(const Tensor& self) { return call<Tensor>("aten::bitwise_not", "", self); }
[[maybe_unused]] Tensor operator!(const Tensor& self) { return call<Tensor>("aten::logical_not", "", self); }

// In place, also of a view, as in x[i] += y.
#define OPWRIGHT_IN_PLACE(symbol, with)                                                                              \
  template <class T>                                                                                                  \
  const Tensor& operator symbol(const Tensor& self, const T& other) { aten::copy_(self, self with other); return self; }
OPWRIGHT_IN_PLACE(+=, +)
OPWRIGHT_IN_PLACE(-=, -)
OPWRIGHT_IN_PLACE(*=, *)
OPWRIGHT_IN_PLACE(/=, /)
#undef OPWRIGHT_IN_PLACE

// -- devices ----------------------------------------------------------------------------------------------------------

[[maybe_unused]] int32_t device_of(const Tensor& x) { return x.is_cuda() ? x.get_device_index() : -1; }

#ifdef __CUDACC__
// The current GPU while it lives: at::cuda::CUDAGuard, OptionalCUDAGuard.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t index) {
    if (index >= 0) guard_.emplace(index);
  }
  explicit DeviceGuard(Device device) : DeviceGuard(device.is_cuda() ? device.index() : -1) {}

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

// torch's current stream of a GPU: of the current one, without an argument.
[[maybe_unused]] cudaStream_t current_cuda_stream(int32_t index = -1) {
  if (index < 0) index = torch::stable::accelerator::getCurrentDeviceIndex();
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index, &stream));
  return static_cast<cudaStream_t>(stream);
}
#endif

// A tensor with its name, for messages: at::TensorArg.
struct NamedTensor {
  Tensor tensor;
  const char* name;
  int position;
};
[[maybe_unused]] void check_same_gpu(const char* where, std::initializer_list<NamedTensor> tensors) {
  for (const NamedTensor& each : tensors) {
    STD_TORCH_CHECK(
        each.tensor.is_cuda() && each.tensor.get_device_index() == tensors.begin()->tensor.get_device_index(), where,
        ": expected ", each.name, " on the same GPU as ", tensors.begin()->name);
  }
}
[[maybe_unused]] void check_same_type(const char* where, std::initializer_list<NamedTensor> tensors) {
  for (const NamedTensor& each : tensors) {
    STD_TORCH_CHECK(
        each.tensor.scalar_type() == tensors.begin()->tensor.scalar_type(), where, ": expected ", each.name,
        " with the dtype of ", tensors.begin()->name);
  }
}

}  // namespace
}  // namespace opwright

namespace torch {
namespace stable {  // where C++ looks for operators of its tensors
using opwright::operator+;
using opwright::operator-;
using opwright::operator*;
using opwright::operator/;
using opwright::operator%;
using opwright::operator&;
using opwright::operator|;
using opwright::operator^;
using opwright::operator==;
using opwright::operator!=;
using opwright::operator<;
using opwright::operator<=;
using opwright::operator>;
using opwright::operator>=;
using opwright::operator~;
using opwright::operator!;
using opwright::operator+=;
using opwright::operator-=;
using opwright::operator*=;
using opwright::operator/=;
}  // namespace stable
}  // namespace torch
