// Calls like an earlier one without a frame of Python: guards, and the call slots of classes whose objects keep guarded
// calls. Each slot does what the class's __call__ in Python does for such calls, and leaves all others to it.
// native_guards.py makes the parts.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <exception>
#include <utility>
#include <vector>

namespace torch::profiler::impl {
bool profilerEnabled();  // its header is large
}

namespace {

constexpr std::size_t most_classes = 8;
constexpr Py_ssize_t most_filled = 64;  // arguments of a call that leaves some to their defaults
constexpr const char* capsule_name = "opwright.guard";

// -- guards --------------------------------------------------------------------------------------------------------

// What a tensor has in common with that of the earlier call.
struct Likeness {
  Py_ssize_t position;
  PyTypeObject* type;  // torch's own, which live as long as the process
  uint64_t keys;       // those that would dispatch a call with it, in this thread
  caffe2::TypeMeta dtype;
  c10::Device device;
  bool requires_grad;
  std::vector<int64_t> sizes, strides;
};

std::size_t tensor_offset = 0;  // of the TensorImpl's address in a Python tensor

const c10::TensorImpl& tensor_in(PyObject* object) {
  return **reinterpret_cast<c10::TensorImpl**>(reinterpret_cast<char*>(object) + tensor_offset);
}

uint64_t keys_of(const c10::TensorImpl& tensor, const c10::impl::LocalDispatchKeySet& of_thread) {
  return ((tensor.key_set() | of_thread.included_) - of_thread.excluded_).raw_repr();
}

Likeness likeness(Py_ssize_t position, PyObject* object) {
  const c10::TensorImpl& tensor = tensor_in(object);
  return {position,
          Py_TYPE(object),
          keys_of(tensor, c10::impl::tls_local_dispatch_key_set()),
          tensor.dtype(),
          tensor.device(),
          tensor.requires_grad(),
          tensor.sizes().vec(),
          tensor.strides().vec()};
}

bool is_like(PyObject* object, const Likeness& like, const c10::impl::LocalDispatchKeySet& of_thread) {
  if (!Py_IS_TYPE(object, like.type)) return false;
  const c10::TensorImpl& tensor = tensor_in(object);
  return keys_of(tensor, of_thread) == like.keys && tensor.dtype() == like.dtype && tensor.device() == like.device &&
         tensor.requires_grad() == like.requires_grad && tensor.sizes() == c10::IntArrayRef(like.sizes) &&
         tensor.strides() == c10::IntArrayRef(like.strides);
}

struct Guard {
  Py_ssize_t arguments;
  int tracking;                       // grad mode: 0 off, 1 on, -1 any
  std::vector<Likeness> tensors;      // each of them once
  std::vector<Py_ssize_t> constants;  // those of other arguments
  std::vector<Py_ssize_t> flags;      // those of lists of bools
  std::vector<std::pair<Py_ssize_t, Py_ssize_t>> repeats;
};

// The parts of a guard's Python function: a tuple, so that Python's garbage collector sees them.
enum Held : Py_ssize_t { held_guard, held_constants, held_flags };

// -0.0 equals 0.0, and is another number to a kernel.
bool is_same_number(double one, double other) { return one == other && std::signbit(one) == std::signbit(other); }

// 1, 0, or -1 for an error.
int is_constant(PyObject* argument, PyObject* value) {
  if (!Py_IS_TYPE(argument, Py_TYPE(value))) return 0;
  if (PyFloat_CheckExact(value)) return is_same_number(PyFloat_AS_DOUBLE(argument), PyFloat_AS_DOUBLE(value));
  if (PyComplex_CheckExact(value)) {
    return is_same_number(PyComplex_RealAsDouble(argument), PyComplex_RealAsDouble(value)) &&
           is_same_number(PyComplex_ImagAsDouble(argument), PyComplex_ImagAsDouble(value));
  }
  return PyObject_RichCompareBool(argument, value, Py_EQ);
}

bool are_flags(PyObject* argument, PyObject* values) {
  if (!PyList_CheckExact(argument) || PyList_GET_SIZE(argument) != PyTuple_GET_SIZE(values)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); ++i) {
    if (PyList_GET_ITEM(argument, i) != PyTuple_GET_ITEM(values, i)) return false;  // True and False exist once
  }
  return true;
}

// Whether the tensors are like those of the earlier call, and no two of them are one.
bool are_like(const std::vector<Likeness>& tensors, PyObject* const* arguments) {
  const c10::impl::LocalDispatchKeySet of_thread = c10::impl::tls_local_dispatch_key_set();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    PyObject* object = arguments[tensors[i].position];
    if (!is_like(object, tensors[i], of_thread)) return false;
    for (std::size_t earlier = 0; earlier < i; ++earlier) {
      if (arguments[tensors[earlier].position] == object) return false;
    }
  }
  return true;
}

// Whether all arguments are as in the earlier call; -1 for an error.
int is_alike(const Guard& guard, PyObject* self, PyObject* const* arguments) {
  if (guard.tracking >= 0 && c10::GradMode::is_enabled() != (guard.tracking == 1)) return 0;
  PyObject* constants = PyTuple_GET_ITEM(self, held_constants);
  for (std::size_t i = 0; i < guard.constants.size(); ++i) {
    const int alike = is_constant(arguments[guard.constants[i]], PyTuple_GET_ITEM(constants, static_cast<Py_ssize_t>(i)));
    if (alike != 1) return alike;
  }
  PyObject* flags = PyTuple_GET_ITEM(self, held_flags);
  for (std::size_t i = 0; i < guard.flags.size(); ++i) {
    if (!are_flags(arguments[guard.flags[i]], PyTuple_GET_ITEM(flags, static_cast<Py_ssize_t>(i)))) return 0;
  }
  for (const auto& [position, earlier] : guard.repeats) {
    if (arguments[position] != arguments[earlier]) return 0;
  }
  return are_like(guard.tensors, arguments);
}

PyObject* holds(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const auto* guard = static_cast<Guard*>(PyCapsule_GetPointer(PyTuple_GET_ITEM(self, held_guard), capsule_name));
  if (guard == nullptr) return nullptr;
  if (count != guard->arguments) Py_RETURN_FALSE;
  try {
    const int alike = is_alike(*guard, self, arguments);
    return alike < 0 ? nullptr : Py_NewRef(alike == 1 ? Py_True : Py_False);
  } catch (const std::exception&) {  // of a tensor that has no sizes or strides, as those before had
    Py_RETURN_FALSE;
  }
}

PyMethodDef holds_definition = {"holds", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&holds)),
                                METH_FASTCALL, nullptr};

void delete_guard(PyObject* capsule) { delete static_cast<Guard*>(PyCapsule_GetPointer(capsule, capsule_name)); }

// -- call slots ----------------------------------------------------------------------------------------------------

PyObject *name_of_guarded_calls, *name_of_arity, *name_of_tails, *name_of_level;
PyObject* forward_mode;  // the namespace of torch.autograd.forward_ad

// As internals/dispatch.py tests it. -1 for an error.
int is_intercepted() {
  if (at::impl::torch_function_mode_enabled() || torch::profiler::impl::profilerEnabled() ||
      c10::impl::TorchDispatchModeTLS::stack_len() != 0) {
    return 1;
  }
  PyObject* level = PyDict_GetItemWithError(forward_mode, name_of_level);  // borrowed
  if (level == nullptr) return PyErr_Occurred() ? -1 : 1;
  const long value = PyLong_AsLong(level);
  return value == -1 ? (PyErr_Occurred() ? -1 : 0) : value >= 0;
}

struct OwnObject {
  PyObject* object;
  explicit OwnObject(PyObject* object) : object(object) {}
  OwnObject(const OwnObject&) = delete;
  ~OwnObject() { Py_XDECREF(object); }
};

struct Class {
  PyObject* type;
  PyObject* in_python;  // its __call__
  PyObject* owner;      // the name of the attribute that has the guarded calls; null: the object itself
};

std::array<Class, most_classes> classes;
std::size_t known_classes = 0;

// The defaults after so many arguments: a new reference, or null without an error if there are none.
PyObject* tail_of(PyObject* owner, Py_ssize_t count) {
  const OwnObject tails(PyObject_GetAttr(owner, name_of_tails));
  const OwnObject key(tails.object == nullptr ? nullptr : PyLong_FromSsize_t(count));
  if (key.object == nullptr) return nullptr;
  PyObject* tail = PyDict_GetItemWithError(tails.object, key.object);  // borrowed
  return tail != nullptr && PyTuple_Check(tail) ? Py_NewRef(tail) : nullptr;
}

enum class Outcome { called, left, failed };

// The result of the first guarded call that holds.
Outcome call_guarded(PyObject* owner, PyObject* const* arguments, Py_ssize_t count, PyObject*& result) {
  const OwnObject guarded(PyObject_GetAttr(owner, name_of_guarded_calls));
  if (guarded.object == nullptr) return Outcome::failed;
  if (!PyTuple_Check(guarded.object) || PyTuple_GET_SIZE(guarded.object) == 0) return Outcome::left;
  const OwnObject arity(PyObject_GetAttr(owner, name_of_arity));
  if (arity.object == nullptr) return Outcome::failed;
  const Py_ssize_t complete = PyLong_AsSsize_t(arity.object);
  if (complete == -1 && PyErr_Occurred()) return Outcome::failed;
  PyObject* filled[most_filled];
  const OwnObject tail(complete == count ? nullptr : tail_of(owner, count));
  if (complete != count) {
    if (tail.object == nullptr) return PyErr_Occurred() ? Outcome::failed : Outcome::left;
    if (count + PyTuple_GET_SIZE(tail.object) != complete || complete > most_filled) return Outcome::left;
    for (Py_ssize_t i = 0; i < complete; ++i) filled[i] = i < count ? arguments[i] : PyTuple_GET_ITEM(tail.object, i - count);
    arguments = filled;
    count = complete;
  }
  const int intercepted = is_intercepted();
  if (intercepted != 0) return intercepted < 0 ? Outcome::failed : Outcome::left;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(guarded.object); ++i) {
    PyObject* each = PyTuple_GET_ITEM(guarded.object, i);
    const OwnObject alike(PyObject_Vectorcall(PyTuple_GET_ITEM(each, 0), arguments, count, nullptr));
    if (alike.object == nullptr) return Outcome::failed;
    if (alike.object == Py_True) {
      result = PyObject_Vectorcall(PyTuple_GET_ITEM(each, 1), arguments, count, nullptr);
      return Outcome::called;
    }
  }
  return Outcome::left;
}

PyObject* call_in_python(const Class& known, PyObject* self, PyObject* arguments, PyObject* keywords) {
  const Py_ssize_t count = PyTuple_GET_SIZE(arguments);
  const OwnObject all(PyTuple_New(count + 1));
  if (all.object == nullptr) return nullptr;
  PyTuple_SET_ITEM(all.object, 0, Py_NewRef(self));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(all.object, i + 1, Py_NewRef(PyTuple_GET_ITEM(arguments, i)));
  }
  return PyObject_Call(known.in_python, all.object, keywords);
}

template <std::size_t which>
PyObject* call(PyObject* self, PyObject* arguments, PyObject* keywords) {
  const Class& known = classes[which];
  if (keywords == nullptr || PyDict_GET_SIZE(keywords) == 0) {
    const OwnObject owner(known.owner == nullptr ? Py_NewRef(self) : PyObject_GetAttr(self, known.owner));
    if (owner.object == nullptr) return nullptr;
    PyObject* result = nullptr;
    PyObject* const* items = reinterpret_cast<PyTupleObject*>(arguments)->ob_item;
    const Outcome outcome = call_guarded(owner.object, items, PyTuple_GET_SIZE(arguments), result);
    if (outcome != Outcome::left) return result;
  }
  return call_in_python(known, self, arguments, keywords);
}

template <std::size_t... which>
constexpr std::array<ternaryfunc, most_classes> slots(std::index_sequence<which...>) {
  return {&call<which>...};
}

std::vector<Py_ssize_t> positions(PyObject* tuple) {
  std::vector<Py_ssize_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) found.push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i)));
  return found;
}

}  // namespace

// A function that compares the arguments of a call with those of an earlier one: `tensors` at some positions;
// `constants` and `flags`, the other values, a tuple for a list of bools; `repeats` are positions, each followed by an
// earlier one with the same tensor.
extern "C" PyObject* opwright_guard(long arguments, long tracking, PyObject* tensor_positions, PyObject* tensors,
                                    PyObject* constant_positions, PyObject* constants, PyObject* flag_positions,
                                    PyObject* flags, PyObject* repeats) try {
  auto* guard = new Guard{arguments, static_cast<int>(tracking), {}, positions(constant_positions),
                          positions(flag_positions), {}};
  Py_ssize_t next = 0;
  for (const Py_ssize_t position : positions(tensor_positions)) {
    guard->tensors.push_back(likeness(position, PyTuple_GET_ITEM(tensors, next++)));
  }
  const std::vector<Py_ssize_t> pairs = positions(repeats);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) guard->repeats.emplace_back(pairs[i], pairs[i + 1]);
  const OwnObject capsule(PyCapsule_New(guard, capsule_name, &delete_guard));
  if (capsule.object == nullptr) return nullptr;
  const OwnObject held(PyTuple_Pack(3, capsule.object, constants, flags));
  return held.object == nullptr ? nullptr : PyCFunction_New(&holds_definition, held.object);
} catch (const std::exception& error) {  // of a tensor that has no sizes or strides
  PyErr_SetString(PyExc_RuntimeError, error.what());
  return nullptr;
}

// Called before anything else.
extern "C" void opwright_reach_tensors(std::size_t offset) { tensor_offset = offset; }

// Calls of objects of a class go through a slot from now on. `owner` is the name of an attribute, or None. Subclasses,
// and whoever asks for __call__, still find the function in Python. False if there are too many classes.
extern "C" bool opwright_take_calls(PyObject* type, PyObject* in_python, PyObject* owner, PyObject* forward_ad) {
  static constexpr std::array<ternaryfunc, most_classes> all = slots(std::make_index_sequence<most_classes>());
  std::size_t which = 0;
  while (which < known_classes && classes[which].type != type) ++which;
  if (which == most_classes) return false;
  known_classes = std::max(known_classes, which + 1);
  name_of_guarded_calls = PyUnicode_InternFromString("_guarded_calls");
  name_of_arity = PyUnicode_InternFromString("_arity");
  name_of_tails = PyUnicode_InternFromString("_tails");
  name_of_level = PyUnicode_InternFromString("_current_level");
  forward_mode = Py_NewRef(forward_ad);
  classes[which] = {Py_NewRef(type), Py_NewRef(in_python), owner == Py_None ? nullptr : Py_NewRef(owner)};
  reinterpret_cast<PyTypeObject*>(type)->tp_call = all[which];
  return true;
}
