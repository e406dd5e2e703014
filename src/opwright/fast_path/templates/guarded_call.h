// Calls like an earlier one without a frame of Python: guards, and the call slots of classes whose objects keep guarded
// calls. A slot makes a call itself only where everything that a guard lists is as it was; it leaves all others to the
// class's __call__ in Python, which goes through torch's dispatcher. guards.py describes guards.
#pragma once
#include <python_objects.h>
#include <unchanged.h>

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace opwright {
namespace {

constexpr std::size_t most_classes = 8;
constexpr std::size_t most_arguments = 64;  // of a guarded call; guards.py makes no guard of more
constexpr const char* guard_capsule = "opwright.guard";

// -- what intercepts a call ------------------------------------------------------------------------------------------

std::atomic<int> reasons_against{0};  // OPWRIGHT_FAST_CALLS, and blocks of ow.fast_calls(False)
PyObject* forward_mode = nullptr;     // the namespace of torch.autograd.forward_ad
PyObject* name_of_level = nullptr;

// Whether something other than the keys of tensors and of the thread may see or change a call: modes, a profiler or
// another observer, forward mode, deterministic algorithms (which fill new memory). -1 for an error.
int others_intercept() {
  if (at::impl::torch_function_mode_enabled() || at::hasCallbacks() ||
      c10::impl::TorchDispatchModeTLS::stack_len() != 0 || at::globalContext().deterministicAlgorithms()) {
    return 1;
  }
  PyObject* level = PyDict_GetItemWithError(forward_mode, name_of_level);  // borrowed
  if (level == nullptr) return PyErr_Occurred() ? -1 : 1;
  const long value = PyLong_AsLong(level);
  return value == -1 ? (PyErr_Occurred() ? -1 : 0) : value >= 0;
}

int is_intercepted() { return reasons_against.load(std::memory_order_relaxed) != 0 ? 1 : others_intercept(); }

// -- the operator's registration -------------------------------------------------------------------------------------

// Torch 2.11 has no public way to ask for the kernel of a key, only a private member with one. An explicit instantiation
// may name it ([temp.spec.general] in the C++ standard). A torch without the member does not compile this file, and then
// has no fast calls.
struct Definition {
  friend auto member_of(Definition);
};
template <auto member>
struct Reached {
  friend auto member_of(Definition) { return member; }
};
template struct Reached<&c10::OperatorHandle::operatorDef_>;

// The kernels that the dispatcher has for an operator, for each key of a call. Whoever registers another one, with
// torch.library or in C++, replaces what is held here.
class Registered {
 public:
  Registered(const std::string& name, c10::DispatchKeySet keys)
      : operation_(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "")) {
    for (const c10::DispatchKey key : keys) kernels_.emplace_back(c10::DispatchKeySet(key), kernel(c10::DispatchKeySet(key)));
  }

  bool is_as_it_was() const {
    for (const auto& [key, before] : kernels_) {
      if (!is_same(kernel(key), before)) return false;
    }
    return true;
  }

 private:
  const c10::KernelFunction& kernel(c10::DispatchKeySet key) const {
    return (operation_.*member_of(Definition()))->op.lookup(key);
  }

  // The functor and the functions come first; a copy of the kernel keeps the functor, so no other can have its address.
  static bool is_same(const c10::KernelFunction& one, const c10::KernelFunction& other) {
    return std::memcmp(&one, &other, sizeof(c10::BoxedKernel) + sizeof(void*)) == 0;
  }

  c10::OperatorHandle operation_;
  std::vector<std::pair<c10::DispatchKeySet, c10::KernelFunction>> kernels_;
};

// -- guards ----------------------------------------------------------------------------------------------------------

// What an argument of a call has to be. The numbers are those of guards.py.
enum class Expected : int64_t { tensor, repeated, floating, integer, constant, list };

// An axis of a tensor of any size: the number of a size that is bound at its first axis, `any_size`, or -2 - a size.
constexpr int64_t any_size = -1;

struct ExpectedTensor {
  PyTypeObject* type;  // torch's own, which live as long as the process
  c10::DispatchKeySet keys;
  caffe2::TypeMeta dtype;
  c10::Device device;
  bool requires_grad;
  std::vector<int64_t> sizes, strides;  // with axes of any size: the axes, and nothing
  bool of_any_size;
};

struct ExpectedArgument {
  Expected kind;
  std::size_t earlier;  // of a repeated tensor
  std::optional<ExpectedTensor> tensor;
  PyObject* value;  // of a constant or a list (then a tuple), held by the guard
};

// Keys that a thread includes and excludes. Not compared are named dims, which autograd's own threads for GPUs exclude
// and no plain tensor has; nor autograd, for calls that it does not track.
struct ThreadKeys {
  c10::DispatchKeySet included, excluded;

  static ThreadKeys of_this_thread(bool with_autograd) {
    const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    static const c10::DispatchKeySet named = key_of_named_dims();
    return {keys.included_, keys.excluded_ - (with_autograd ? named : named | c10::autograd_dispatch_keyset)};
  }

  bool operator==(const ThreadKeys& other) const { return included == other.included && excluded == other.excluded; }

 private:
  static c10::DispatchKeySet key_of_named_dims() {
    try {
      return c10::DispatchKeySet(c10::parseDispatchKey("Named"));
    } catch (const std::exception&) {  // a torch without them
      return c10::DispatchKeySet();
    }
  }
};

// Keys by which the dispatcher would call an operator on a tensor.
c10::DispatchKeySet keys_of(const at::Tensor& tensor, bool with_autograd) {
  return with_autograd ? tensor.key_set() : tensor.key_set() - c10::autograd_dispatch_keyset;
}

struct Guard {
  std::vector<ExpectedArgument> arguments;
  ThreadKeys thread_keys;
  int tracking;          // 0: grad mode is off, 1: autograd tracks the call, -1: no tensor requires a gradient
  bool below_autograd;   // what runs is a kernel, for which the dispatcher has done with autograd
  std::optional<Registered> registered;
  std::vector<Owned> values;  // of constants and lists; a guard keeps no tensor alive
  int64_t hits = 0;
};

// Reads what guards.py describes; throws for what it does not know.
class GuardReader {
 public:
  explicit GuardReader(PyObject* items, bool is_tracked) : is_tracked_(is_tracked) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); ++i) arguments.push_back(argument(PyTuple_GET_ITEM(items, i)));
  }

  std::vector<ExpectedArgument> arguments;
  c10::DispatchKeySet keys;  // of all tensors

 private:
  ExpectedArgument argument(PyObject* item) {
    const auto kind = static_cast<Expected>(PyLong_AsLongLong(PyTuple_GET_ITEM(item, 0)));
    PyObject* value = PyTuple_GET_ITEM(item, 1);
    switch (kind) {
      case Expected::tensor: return {kind, 0, tensor(value, PyTuple_GET_ITEM(item, 2)), nullptr};
      case Expected::repeated: return {kind, static_cast<std::size_t>(PyLong_AsSsize_t(value)), {}, nullptr};
      case Expected::floating:
      case Expected::integer: return {kind, 0, {}, nullptr};
      case Expected::constant:
      case Expected::list: return {kind, 0, {}, value};
    }
    throw std::invalid_argument("a guard expects an argument of an unknown kind");
  }

  ExpectedTensor tensor(PyObject* example, PyObject* axes) {
    if (!is_plain_tensor(example)) throw std::invalid_argument("a guard's tensor must be a plain tensor");
    const at::Tensor& tensor = tensor_in(example);
    const c10::impl::LocalDispatchKeySet of_thread = c10::impl::tls_local_dispatch_key_set();
    keys = keys | ((tensor.key_set() | of_thread.included_) - of_thread.excluded_);
    const bool of_any_size = axes != Py_None;
    std::vector<int64_t> sizes = of_any_size ? std::vector<int64_t>() : tensor.sizes().vec();
    for (Py_ssize_t i = 0; of_any_size && i < PyTuple_GET_SIZE(axes); ++i) {
      sizes.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(axes, i)));
    }
    return {Py_TYPE(example),
            keys_of(tensor, is_tracked_),
            tensor.dtype(),
            tensor.device(),
            tensor.requires_grad(),
            std::move(sizes),
            of_any_size ? std::vector<int64_t>() : tensor.strides().vec(),
            of_any_size};
  }

  bool is_tracked_;
};

// -0.0 equals 0.0, and is another number to a kernel.
bool is_same_number(double one, double other) {
  return one == other && std::signbit(one) == std::signbit(other);
}

int is_constant(PyObject* argument, PyObject* value) {
  if (!Py_IS_TYPE(argument, Py_TYPE(value))) return 0;
  if (PyFloat_CheckExact(value)) return is_same_number(PyFloat_AS_DOUBLE(argument), PyFloat_AS_DOUBLE(value));
  if (PyComplex_Check(value)) return 0;  // -0j equals 0j; no operator has such an argument
  return argument == value ? 1 : PyObject_RichCompareBool(argument, value, Py_EQ);
}

// Compares the arguments of one call with a guard.
class Comparison {
 public:
  Comparison(const Guard& guard, PyObject* const* arguments) : guard_(guard), arguments_(arguments) { sizes_.fill(-1); }

  // Whether all are as expected; -1 for an error.
  int holds() {
    if (guard_.tracking >= 0 && c10::GradMode::is_enabled() != (guard_.tracking == 1)) return 0;
    if (!(ThreadKeys::of_this_thread(guard_.tracking == 1) == guard_.thread_keys)) return 0;
    for (std::size_t i = 0; i < guard_.arguments.size(); ++i) {
      const int is_one = is_as_expected(i, guard_.arguments[i]);
      if (is_one != 1) return is_one;
    }
    return !guard_.registered || guard_.registered->is_as_it_was();
  }

 private:
  int is_as_expected(std::size_t i, const ExpectedArgument& expected) {
    PyObject* argument = arguments_[i];
    switch (expected.kind) {
      case Expected::tensor: return is_tensor(argument, *expected.tensor) && is_first(i);
      case Expected::repeated: return argument == arguments_[expected.earlier];
      case Expected::floating: return PyFloat_CheckExact(argument);
      case Expected::integer: return is_in_range(argument);
      case Expected::constant: return is_constant(argument, expected.value);
      case Expected::list: return is_list(argument, expected.value);
    }
    return 0;
  }

  bool is_tensor(PyObject* object, const ExpectedTensor& expected) {
    if (!Py_IS_TYPE(object, expected.type)) return false;
    const at::Tensor& tensor = tensor_in(object);
    return keys_of(tensor, guard_.tracking == 1) == expected.keys && tensor.dtype() == expected.dtype &&
           tensor.device() == expected.device && tensor.requires_grad() == expected.requires_grad &&
           (expected.of_any_size ? has_axes(tensor, expected.sizes)
                                 : tensor.sizes() == c10::IntArrayRef(expected.sizes) &&
                                       tensor.strides() == c10::IntArrayRef(expected.strides));
  }

  bool has_axes(const at::Tensor& tensor, const std::vector<int64_t>& axes) {
    const c10::IntArrayRef sizes = tensor.sizes();
    if (sizes.size() != axes.size()) return false;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (axes[i] == any_size) continue;
      int64_t expected = -2 - axes[i];
      if (axes[i] >= 0) {
        int64_t& bound = sizes_[static_cast<std::size_t>(axes[i])];
        if (bound < 0) bound = sizes[i];
        expected = bound;
      }
      if (sizes[i] != expected) return false;
    }
    return true;
  }

  // Whether no earlier argument is the same object.
  bool is_first(std::size_t position) const {
    for (std::size_t i = 0; i < position; ++i) {
      if (arguments_[i] == arguments_[position]) return false;
    }
    return true;
  }

  // Whether the dispatcher would pass the integer.
  static int is_in_range(PyObject* argument) {
    if (!PyLong_CheckExact(argument)) return 0;
    int overflow = 0;
    PyLong_AsLongLongAndOverflow(argument, &overflow);
    return overflow == 0;
  }

  static int is_list(PyObject* argument, PyObject* values) {
    if (!PyList_CheckExact(argument) || PyList_GET_SIZE(argument) != PyTuple_GET_SIZE(values)) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); ++i) {
      const int is_one = is_constant(PyList_GET_ITEM(argument, i), PyTuple_GET_ITEM(values, i));
      if (is_one != 1) return is_one;
    }
    return 1;
  }

  const Guard& guard_;
  PyObject* const* arguments_;
  std::array<int64_t, most_arguments> sizes_;  // guards.py names no more
};

Guard* guard_in(PyObject* capsule) { return static_cast<Guard*>(PyCapsule_GetPointer(capsule, guard_capsule)); }

void delete_guard(PyObject* capsule) { delete guard_in(capsule); }

// -- one call ----------------------------------------------------------------------------------------------------------

// The complete arguments of a call, converted as the dispatcher converts them.
class Arguments {
 public:
  Arguments() = default;
  Arguments(const Arguments&) = delete;
  ~Arguments() {
    for (std::size_t i = 0; i < made_; ++i) Py_DECREF(own_[i]);
  }

  // `owner` has the number of arguments, the defaults of the last ones, and the positions of those that are floats.
  // 1, 0 if these are no complete arguments, -1 for an error.
  int take(PyObject* owner, PyObject* const* given, Py_ssize_t count);
  PyObject** begin() { return all_.data(); }
  std::size_t size() const { return size_; }

  // A kernel may keep or change its list: like the dispatcher, each call gets a new one.
  bool renew_list(std::size_t i) {
    PyObject* list = PyList_GetSlice(all_[i], 0, PyList_GET_SIZE(all_[i]));
    return list != nullptr && own(i, list);
  }

 private:
  bool own(std::size_t i, PyObject* made) {
    own_[made_++] = all_[i] = made;
    return true;
  }

  std::array<PyObject*, most_arguments> all_;
  std::array<PyObject*, 2 * most_arguments> own_;
  std::size_t size_ = 0, made_ = 0;
  Owned tail_;
};

PyObject *name_of_guarded_calls, *name_of_arity, *name_of_tails, *name_of_floats;

int Arguments::take(PyObject* owner, PyObject* const* given, Py_ssize_t count) {
  const Owned arity(PyObject_GetAttr(owner, name_of_arity));
  if (!arity) return -1;
  const Py_ssize_t complete = PyLong_AsSsize_t(arity.get());
  if (complete == -1 && PyErr_Occurred()) return -1;
  if (complete < count || complete > static_cast<Py_ssize_t>(most_arguments)) return 0;
  std::copy(given, given + count, all_.begin());
  size_ = static_cast<std::size_t>(complete);
  if (count < complete) {
    const Owned tails(PyObject_GetAttr(owner, name_of_tails));
    const Owned key(tails ? PyLong_FromSsize_t(count) : nullptr);
    if (!key) return -1;
    PyObject* tail = PyDict_GetItemWithError(tails.get(), key.get());  // borrowed
    if (tail == nullptr) return PyErr_Occurred() ? -1 : 0;
    if (!PyTuple_Check(tail) || count + PyTuple_GET_SIZE(tail) != complete) return 0;
    tail_ = Owned::from(tail);
    for (Py_ssize_t i = count; i < complete; ++i) all_[static_cast<std::size_t>(i)] = PyTuple_GET_ITEM(tail, i - count);
  }
  const Owned floats(PyObject_GetAttr(owner, name_of_floats));
  if (!floats || !PyTuple_Check(floats.get())) return -1;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(floats.get()); ++i) {
    const Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(floats.get(), i));
    if (at < 0 || at >= complete) return 0;
    if (!PyLong_CheckExact(all_[static_cast<std::size_t>(at)])) continue;
    const double value = PyLong_AsDouble(all_[static_cast<std::size_t>(at)]);
    if (value == -1 && PyErr_Occurred()) {  // too large: the plain way raises its error
      PyErr_Clear();
      return 0;
    }
    PyObject* made = PyFloat_FromDouble(value);
    if (made == nullptr) return -1;
    own(static_cast<std::size_t>(at), made);
  }
  return 1;
}

// The guarded call that these arguments take, an index; -1 if none, -2 for an error.
Py_ssize_t find_guarded(PyObject* guarded_calls, Arguments& arguments) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(guarded_calls); ++i) {
    const Guard* guard = guard_in(PyTuple_GET_ITEM(PyTuple_GET_ITEM(guarded_calls, i), 0));
    if (guard == nullptr) return -2;
    if (guard->arguments.size() != arguments.size()) continue;
    try {
      const int holds = Comparison(*guard, arguments.begin()).holds();
      if (holds != 0) return holds < 0 ? -2 : i;
    } catch (const std::exception&) {  // of a tensor that has no sizes or strides, or an operator without a kernel
    }
  }
  return -1;
}

PyObject *name_of_outputs, *name_of_refuse;

// Whether a result is of the form that the dispatcher takes from a kernel; -1 for an error.
int has_form(PyObject* owner, PyObject* result) {
  const Owned attribute(PyObject_GetAttr(owner, name_of_outputs));
  const Py_ssize_t outputs = attribute ? PyLong_AsSsize_t(attribute.get()) : -1;
  if (outputs == -1 && PyErr_Occurred()) return -1;
  if (outputs == -1) return PyObject_TypeCheck(result, tensor_type);
  if (outputs == 0) return result == Py_None;
  if (!PyTuple_Check(result) || PyTuple_GET_SIZE(result) != outputs) return 0;
  for (Py_ssize_t i = 0; i < outputs; ++i) {
    if (!PyObject_TypeCheck(PyTuple_GET_ITEM(result, i), tensor_type)) return 0;
  }
  return 1;
}

PyObject* run_on(PyObject* guarded, const Guard& guard, Arguments& arguments) {
  PyObject* run = PyTuple_GET_ITEM(guarded, 1);
  if (!guard.below_autograd) return PyObject_Vectorcall(run, arguments.begin(), arguments.size(), nullptr);
  const at::AutoDispatchBelowAutograd below;
  return PyObject_Vectorcall(run, arguments.begin(), arguments.size(), nullptr);
}

// Run what belongs to a guard that holds.
PyObject* run_guarded(PyObject* owner, PyObject* guarded, Arguments& arguments) {
  Guard* guard = guard_in(PyTuple_GET_ITEM(guarded, 0));
  ++guard->hits;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (guard->arguments[i].kind == Expected::list && !arguments.renew_list(i)) return nullptr;
  }
  Owned result(run_on(guarded, *guard, arguments));
  const int is_one = result ? has_form(owner, result.get()) : -1;
  if (is_one == 0) Owned(PyObject_CallMethodObjArgs(owner, name_of_refuse, result.get(), nullptr));  // it raises
  return is_one == 1 ? result.release() : nullptr;
}

enum class Outcome { called, left, failed };

Outcome call_guarded(PyObject* owner, PyObject* const* given, Py_ssize_t count, PyObject*& result) {
  const Owned guarded(PyObject_GetAttr(owner, name_of_guarded_calls));
  if (!guarded) return Outcome::failed;
  if (!PyTuple_Check(guarded.get()) || PyTuple_GET_SIZE(guarded.get()) == 0) return Outcome::left;
  const int intercepted = is_intercepted();
  if (intercepted != 0) return intercepted < 0 ? Outcome::failed : Outcome::left;
  Arguments arguments;
  const int complete = arguments.take(owner, given, count);
  if (complete != 1) return complete < 0 ? Outcome::failed : Outcome::left;
  const Py_ssize_t found = find_guarded(guarded.get(), arguments);
  if (found < 0) return found == -1 ? Outcome::left : Outcome::failed;
  result = run_guarded(owner, PyTuple_GET_ITEM(guarded.get(), found), arguments);
  return Outcome::called;
}

// -- call slots --------------------------------------------------------------------------------------------------------

struct Class {
  PyObject* type;
  PyObject* in_python;  // its __call__
  PyObject* owner;      // the name of the attribute that has the guarded calls; null: the object itself
};

std::array<Class, most_classes> classes;
std::size_t known_classes = 0;

PyObject* call_in_python(const Class& known, PyObject* self, PyObject* arguments, PyObject* keywords) {
  const Py_ssize_t count = PyTuple_GET_SIZE(arguments);
  const Owned all(PyTuple_New(count + 1));
  if (!all) return nullptr;
  PyTuple_SET_ITEM(all.get(), 0, Py_NewRef(self));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(all.get(), i + 1, Py_NewRef(PyTuple_GET_ITEM(arguments, i)));
  }
  return PyObject_Call(known.in_python, all.get(), keywords);
}

template <std::size_t which>
PyObject* call_of_class(PyObject* self, PyObject* arguments, PyObject* keywords) {
  const Class& known = classes[which];
  if (keywords == nullptr || PyDict_GET_SIZE(keywords) == 0) {
    const Owned owner(known.owner == nullptr ? Py_NewRef(self) : PyObject_GetAttr(self, known.owner));
    if (!owner) return nullptr;
    PyObject* result = nullptr;
    PyObject* const* items = reinterpret_cast<PyTupleObject*>(arguments)->ob_item;
    const Outcome outcome = call_guarded(owner.get(), items, PyTuple_GET_SIZE(arguments), result);
    if (outcome != Outcome::left) return result;
  }
  return call_in_python(known, self, arguments, keywords);
}

template <std::size_t... which>
constexpr std::array<ternaryfunc, most_classes> slots(std::index_sequence<which...>) {
  return {&call_of_class<which>...};
}

}  // namespace
}  // namespace opwright

// A guard for calls with arguments like the described ones: a capsule. `name` is the operator's whose registration it
// holds, or None. The keys of its tensors are those of this moment, in this thread.
extern "C" PyObject* opwright_guard(PyObject* items, long tracking, long below_autograd, PyObject* name) {
  HANDLE_TH_ERRORS
  opwright::GuardReader reader(items, tracking == 1);
  if (PyErr_Occurred()) return nullptr;
  auto guard = std::make_unique<opwright::Guard>();
  guard->tracking = static_cast<int>(tracking);
  guard->thread_keys = opwright::ThreadKeys::of_this_thread(tracking == 1);
  guard->below_autograd = below_autograd != 0;
  if (name != Py_None) guard->registered.emplace(PyUnicode_AsUTF8(name), reader.keys);
  guard->arguments = std::move(reader.arguments);
  for (const opwright::ExpectedArgument& each : guard->arguments) {
    if (each.value != nullptr) guard->values.push_back(opwright::Owned::from(each.value));
  }
  PyObject* capsule = PyCapsule_New(guard.get(), opwright::guard_capsule, &opwright::delete_guard);
  if (capsule != nullptr) guard.release();
  return capsule;
  END_HANDLE_TH_ERRORS
}

// How many calls a guard has taken.
extern "C" PyObject* opwright_guard_hits(PyObject* capsule) {
  const opwright::Guard* guard = opwright::guard_in(capsule);
  return guard == nullptr ? nullptr : PyLong_FromLongLong(guard->hits);
}

// The guarded call of an owner that arguments would take if nothing were switched off; None if there is none.
extern "C" PyObject* opwright_find_guarded(PyObject* owner, PyObject* given) {
  HANDLE_TH_ERRORS
  const opwright::Owned guarded(PyObject_GetAttr(owner, opwright::name_of_guarded_calls));
  const int intercepted = guarded ? opwright::others_intercept() : -1;
  if (intercepted != 0) return intercepted < 0 ? nullptr : Py_NewRef(Py_None);
  opwright::Arguments arguments;
  const int complete = arguments.take(owner, reinterpret_cast<PyTupleObject*>(given)->ob_item, PyTuple_GET_SIZE(given));
  if (complete < 0) return nullptr;
  const Py_ssize_t found = complete == 0 ? -1 : opwright::find_guarded(guarded.get(), arguments);
  if (found == -2) return nullptr;
  return Py_NewRef(found < 0 ? Py_None : PyTuple_GET_ITEM(guarded.get(), found));
  END_HANDLE_TH_ERRORS
}

// Run a guarded call that `opwright_find_guarded` has found.
extern "C" PyObject* opwright_run_guarded(PyObject* owner, PyObject* guarded, PyObject* given) {
  opwright::Arguments arguments;
  const int complete = arguments.take(owner, reinterpret_cast<PyTupleObject*>(given)->ob_item, PyTuple_GET_SIZE(given));
  if (complete != 1) {
    if (complete == 0) PyErr_SetString(PyExc_TypeError, "the arguments are not those of the guard");
    return nullptr;
  }
  return opwright::run_guarded(owner, guarded, arguments);
}

// See is_verified in unchanged.h.
extern "C" void opwright_verify(int64_t first, int64_t of) {
  opwright::first_verified = first;
  opwright::verified_of = of;
}

// One reason more or less, in this process, to make every call the plain way.
extern "C" void opwright_count_reason(int change) { opwright::reasons_against += change; }

// Calls of objects of a class go through a slot from now on. `owner` is the name of an attribute, or None. Subclasses,
// and whoever asks for __call__, still find the function in Python. False if there are too many classes.
extern "C" bool opwright_take_calls(PyObject* type, PyObject* in_python, PyObject* owner, PyObject* forward_ad) {
  using namespace opwright;
  static constexpr std::array<ternaryfunc, most_classes> all = slots(std::make_index_sequence<most_classes>());
  std::size_t which = 0;
  while (which < known_classes && classes[which].type != type) ++which;
  if (which == most_classes) return false;
  known_classes = std::max(known_classes, which + 1);
  name_of_guarded_calls = PyUnicode_InternFromString("_guarded_calls");
  name_of_arity = PyUnicode_InternFromString("_arity");
  name_of_tails = PyUnicode_InternFromString("_tails");
  name_of_floats = PyUnicode_InternFromString("_floats");
  name_of_outputs = PyUnicode_InternFromString("_outputs");
  name_of_refuse = PyUnicode_InternFromString("_refuse");
  name_of_level = PyUnicode_InternFromString("_current_level");
  forward_mode = Py_NewRef(forward_ad);
  classes[which] = {Py_NewRef(type), Py_NewRef(in_python), owner == Py_None ? nullptr : Py_NewRef(owner)};
  reinterpret_cast<PyTypeObject*>(type)->tp_call = all[which];
  return true;
}
