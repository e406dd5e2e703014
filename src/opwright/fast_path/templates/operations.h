// The operations of a gradient as a list, run one after another without Python. operations.py says what it is made from.
#pragma once
#include <python_objects.h>
#include <unchanged.h>

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace opwright {
namespace {

// A value of an operation: a constant, or tensors by their slots, of which -1 is none.
struct TapeValue {
  enum Kind { constant, tensor, tensors, optional_tensors } kind = constant;
  c10::IValue value;
  std::vector<int64_t> slots;
};

struct TapeStep {
  std::optional<c10::OperatorHandle> operation;  // none: an object in Python is called
  std::vector<TapeValue> arguments;
  std::vector<int64_t> results;  // the slots of the tensors that it returns; lists are one after another
  std::vector<int64_t> done;     // the slots that nothing reads after it
};

// What a tape was made for.
struct TapeInput {
  uint64_t keys;
  c10::ScalarType dtype;
  c10::Device device;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  explicit TapeInput(const at::Tensor& tensor)
      : keys(tensor.key_set().raw_repr()), dtype(tensor.scalar_type()), device(tensor.device()),
        sizes(tensor.sizes().vec()), strides(tensor.strides().vec()) {}

  bool is_like(const at::Tensor& tensor) const {
    return tensor.defined() && tensor.key_set().raw_repr() == keys && tensor.scalar_type() == dtype &&
           tensor.device() == device && tensor.sizes() == sizes && tensor.strides() == strides &&
           !tensor._fw_grad(0).defined();
  }
};

// By which torch chooses among operations, one bit each: for other settings, a tape would be of others.
uint64_t process_settings() {
  const at::Context& context = at::globalContext();
  const bool settings[] = {
      context.userEnabledCuDNN(),    context.userEnabledMkldnn(),    context.benchmarkCuDNN(),
      context.deterministicCuDNN(),  context.deterministicAlgorithms(), context.userEnabledMathSDP(),
      context.userEnabledFlashSDP(), context.userEnabledMemEfficientSDP(), context.userEnabledCuDNNSDP(),
  };
  uint64_t bits = 0;
  for (const bool each : settings) bits = bits << 1 | static_cast<uint64_t>(each);
  return bits;
}

// What operations depend on besides their arguments: keys and defaults of the thread, settings of the process.
struct Settings {
  uint64_t included = c10::impl::tls_local_dispatch_key_set().included_.raw_repr();
  uint64_t excluded = c10::impl::tls_local_dispatch_key_set().excluded_.raw_repr();
  caffe2::TypeMeta default_dtype = c10::get_default_dtype();
  uint64_t of_process = process_settings();
  bool operator==(const Settings& other) const {
    return included == other.included && excluded == other.excluded && default_dtype == other.default_dtype &&
           of_process == other.of_process;
  }
};

// Someone watches operations: a profiler, a mode of __torch_function__, anomaly detection, hooks of saved tensors.
bool operations_are_watched() {
  return at::hasCallbacks() || at::impl::torch_function_mode_enabled() || torch::autograd::AnomalyMode::is_enabled() ||
         !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
}

// Reads what Python describes; every function sets no error of Python but throws.
class TapeReader {
 public:
  static int64_t integer(PyObject* object) {
    const int64_t value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) unreadable();
    return value;
  }

  static std::vector<int64_t> integers(PyObject* list) {
    std::vector<int64_t> values;
    for (Py_ssize_t i = 0; i < size_of(list); ++i) values.push_back(integer(item(list, i)));
    return values;
  }

  // (name, overload, arguments, results, done)
  static TapeStep step(PyObject* description, bool is_call) {
    TapeStep step{{}, {}, integers(item(description, 3)), integers(item(description, 4))};
    if (is_call) return step;
    const std::string name = text(item(description, 0)), overload = text(item(description, 1));
    step.operation = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
    PyObject* arguments = item(description, 2);
    const auto& declared = step.operation->schema().arguments();
    if (static_cast<std::size_t>(size_of(arguments)) != declared.size()) unreadable();
    for (std::size_t i = 0; i < declared.size(); ++i) {
      step.arguments.push_back(argument(item(arguments, static_cast<Py_ssize_t>(i)), *declared[i].type()));
    }
    return step;
  }

  // A tensor is a tuple of its slot.
  static bool is_slot(PyObject* object) { return PyTuple_Check(object) && PyTuple_GET_SIZE(object) == 1; }

  static Py_ssize_t size_of(PyObject* list) {
    if (!PyTuple_Check(list) && !PyList_Check(list)) unreadable();
    return PySequence_Fast_GET_SIZE(list);
  }

  static PyObject* item(PyObject* list, Py_ssize_t i) {
    if (i >= size_of(list)) unreadable();
    return PySequence_Fast_GET_ITEM(list, i);
  }

 private:
  [[noreturn]] static void unreadable() {
    PyErr_Clear();
    throw std::invalid_argument("a value of an operation is of a kind that a tape does not hold");
  }

  static std::string text(PyObject* object) {
    const char* value = PyUnicode_AsUTF8(object);
    if (value == nullptr) unreadable();
    return value;
  }

  static TapeValue argument(PyObject* object, const c10::Type& type) {
    if (is_slot(object)) return {TapeValue::tensor, {}, {integer(PyTuple_GET_ITEM(object, 0))}};
    const c10::Type* bare = &type;
    if (type.kind() == c10::TypeKind::OptionalType) {
      if (object == Py_None) return {};
      bare = type.castRaw<c10::OptionalType>()->getElementType().get();
    }
    if (bare->kind() == c10::TypeKind::ListType) return list(object, *bare->castRaw<c10::ListType>()->getElementType());
    if (bare->kind() == c10::TypeKind::TensorType) return {TapeValue::constant, number_as_tensor(object), {}};
    return {TapeValue::constant, scalar(object, *bare), {}};
  }

  // A number in the place of a tensor does not take part in the choice of a result's dtype as a tensor would.
  static at::Tensor number_as_tensor(PyObject* object) {
    at::Tensor number = c10::scalar_to_tensor(scalar(object, *c10::NumberType::get()).toScalar());
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
  }

  static TapeValue list(PyObject* object, const c10::Type& item_type) {
    const Py_ssize_t count = size_of(object);
    switch (item_type.kind()) {
      case c10::TypeKind::TensorType:
      case c10::TypeKind::OptionalType: {
        const bool is_optional = item_type.kind() == c10::TypeKind::OptionalType;
        TapeValue tensors{is_optional ? TapeValue::optional_tensors : TapeValue::tensors, {}, {}};
        for (Py_ssize_t i = 0; i < count; ++i) {
          PyObject* each = item(object, i);
          if (!is_slot(each) && !(is_optional && each == Py_None)) unreadable();
          tensors.slots.push_back(each == Py_None ? -1 : integer(PyTuple_GET_ITEM(each, 0)));
        }
        return tensors;
      }
      case c10::TypeKind::FloatType: return listed<double>(object, item_type);
      case c10::TypeKind::BoolType: return listed<bool>(object, item_type);
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType: return listed<int64_t>(object, item_type);
      default: unreadable();
    }
  }

  template <class Item>
  static TapeValue listed(PyObject* object, const c10::Type& item_type) {
    c10::List<Item> items;
    for (Py_ssize_t i = 0; i < size_of(object); ++i) items.push_back(scalar(item(object, i), item_type).to<Item>());
    return {TapeValue::constant, std::move(items), {}};
  }

  static c10::IValue scalar(PyObject* object, const c10::Type& type) {
    switch (type.kind()) {
      case c10::TypeKind::FloatType: {
        const double value = PyFloat_AsDouble(object);
        if (value == -1 && PyErr_Occurred()) unreadable();
        return value;
      }
      case c10::TypeKind::BoolType: return integer(object) != 0;
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        if (THPDtype_Check(object)) return static_cast<int64_t>(reinterpret_cast<THPDtype*>(object)->scalar_type);
        if (THPLayout_Check(object)) return static_cast<int64_t>(reinterpret_cast<THPLayout*>(object)->layout);
        if (THPMemoryFormat_Check(object)) {
          return static_cast<int64_t>(reinterpret_cast<THPMemoryFormat*>(object)->memory_format);
        }
        return integer(object);
      case c10::TypeKind::NumberType:
        if (PyBool_Check(object)) return object == Py_True;
        if (PyLong_Check(object)) return integer(object);
        if (PyFloat_Check(object)) return PyFloat_AS_DOUBLE(object);
        if (PyComplex_Check(object)) {
          return c10::complex<double>(PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object));
        }
        unreadable();
      case c10::TypeKind::StringType: return text(object);
      case c10::TypeKind::DeviceObjType:
        if (THPDevice_Check(object)) return reinterpret_cast<THPDevice*>(object)->device;
        unreadable();
      default: unreadable();
    }
  }
};

// A call of an object in Python with tensors of slots. Its argument is a slot, a list of values, or any other object.
class TapeCall {
 public:
  // `call` is what is called, and a list of its arguments.
  static Owned result(PyObject* call, const std::vector<at::Tensor>& slots) {
    PyObject* arguments = TapeReader::item(call, 1);
    std::vector<Owned> values;
    std::vector<PyObject*> passed;
    for (Py_ssize_t i = 0; i < TapeReader::size_of(arguments); ++i) {
      values.push_back(value_of(TapeReader::item(arguments, i), slots));
      passed.push_back(values.back().get());
    }
    return checked(PyObject_Vectorcall(TapeReader::item(call, 0), passed.data(), passed.size(), nullptr));
  }

  template <class Put>
  static void each_tensor(PyObject* result, Put put) {
    if (!PyTuple_Check(result) && !PyList_Check(result)) return put(tensor_of(result));
    for (Py_ssize_t i = 0; i < TapeReader::size_of(result); ++i) put(tensor_of(TapeReader::item(result, i)));
  }

 private:
  static Owned value_of(PyObject* argument, const std::vector<at::Tensor>& slots) {
    if (TapeReader::is_slot(argument)) return python_of(slots[TapeReader::integer(PyTuple_GET_ITEM(argument, 0))]);
    if (!PyList_Check(argument)) return Owned::from(argument);
    Owned list = checked(PyList_New(PyList_GET_SIZE(argument)));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(argument); ++i) {
      PyList_SET_ITEM(list.get(), i, value_of(PyList_GET_ITEM(argument, i), slots).release());
    }
    return list;
  }

  static const at::Tensor& tensor_of(PyObject* object) {
    if (!is_plain_tensor(object)) throw std::logic_error("an operator returned something else than when it was recorded");
    return tensor_in(object);
  }
};

class Tape {
 public:
  // `description` is (steps, number of slots, slots of the results); the first slots are those of the inputs. `calls` has
  // what each step calls (TapeCall), or None for an operation of torch.
  Tape(PyObject* description, const std::vector<at::Tensor>& inputs, PyObject* calls) {
    for (const at::Tensor& each : inputs) inputs_.emplace_back(each);
    PyObject* steps = TapeReader::item(description, 0);
    for (Py_ssize_t i = 0; i < TapeReader::size_of(steps); ++i) {
      steps_.push_back(TapeReader::step(TapeReader::item(steps, i), TapeReader::item(calls, i) != Py_None));
    }
    slots_ = TapeReader::integer(TapeReader::item(description, 1));
    results_ = TapeReader::integers(TapeReader::item(description, 2));
  }

  bool is_for(const std::vector<at::Tensor>& inputs) const {
    if (inputs.size() != inputs_.size() || operations_are_watched() || !(settings_ == Settings())) return false;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs_[i].is_like(inputs[i])) return false;
    }
    return true;
  }

  // Whether this run is one that is also made in Python and compared: the first ones, and some later.
  bool is_verified_now() const { return is_verified(runs_++); }

  // Takes the inputs, the calls that it was made with, and the GIL, which is not held while torch's operations run. One
  // tensor for each result; an undefined one where there is none.
  std::vector<at::Tensor> run(std::vector<at::Tensor> slots, PyObject* calls, Gil& gil) const {
    slots.resize(static_cast<std::size_t>(slots_));
    torch::jit::Stack stack;
    stack.reserve(4);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (steps_[i].operation) {
        gil.give();
        operate(steps_[i], slots, stack);
      } else {
        gil.take();
        call(steps_[i], slots, TapeReader::item(calls, static_cast<Py_ssize_t>(i)));
      }
      for (const int64_t slot : steps_[i].done) slots[slot] = at::Tensor();
    }
    std::vector<at::Tensor> found;
    found.reserve(results_.size());
    for (const int64_t slot : results_) found.push_back(slot < 0 ? at::Tensor() : slots[slot]);
    return found;
  }

 private:
  static c10::IValue value_of(const TapeValue& argument, const std::vector<at::Tensor>& slots) {
    switch (argument.kind) {
      case TapeValue::constant: return argument.value;
      case TapeValue::tensor: return slots[argument.slots[0]];
      case TapeValue::tensors: {
        c10::List<at::Tensor> tensors;
        for (const int64_t slot : argument.slots) tensors.push_back(slots[slot]);
        return tensors;
      }
      default: {
        c10::List<std::optional<at::Tensor>> tensors;
        for (const int64_t slot : argument.slots) {
          tensors.push_back(slot < 0 ? std::optional<at::Tensor>() : std::optional<at::Tensor>(slots[slot]));
        }
        return tensors;
      }
    }
  }

  static void operate(const TapeStep& step, std::vector<at::Tensor>& slots, torch::jit::Stack& stack) {
    const at::AutoDispatchBelowAutograd below;  // as in Python, views and writes count for who looks at versions
    stack.clear();
    for (const TapeValue& argument : step.arguments) stack.push_back(value_of(argument, slots));
    step.operation->callBoxed(stack);
    Places places{step.results, slots};
    for (c10::IValue& each : stack) {
      if (each.isTensorList()) {
        for (const at::Tensor& tensor : each.toTensorVector()) places.put(tensor);
      } else {
        places.put(each.isTensor() ? std::move(each).toTensor() : at::Tensor());
      }
    }
  }

  // With the dispatch keys of the thread, which an operator's guards compare.
  static void call(const TapeStep& step, std::vector<at::Tensor>& slots, PyObject* call) {
    const Owned result = TapeCall::result(call, slots);
    Places places{step.results, slots};
    TapeCall::each_tensor(result.get(), [&](const at::Tensor& tensor) { places.put(tensor); });
  }

  // Where the results of a step go, one after another.
  struct Places {
    const std::vector<int64_t>& of_results;
    std::vector<at::Tensor>& slots;
    std::size_t next = 0;

    void put(at::Tensor tensor) {
      if (next >= of_results.size()) throw std::logic_error("an operation returned more tensors than when it was recorded");
      const int64_t slot = of_results[next++];
      if (slot >= 0) slots[slot] = std::move(tensor);
    }
  };

  mutable std::atomic<int64_t> runs_{0};
  std::vector<TapeInput> inputs_;
  Settings settings_;
  std::vector<TapeStep> steps_;
  int64_t slots_ = 0;
  std::vector<int64_t> results_;
};

}  // namespace
}  // namespace opwright
