// Objects of Python in C++: references, Python's lock and errors, and torch's tensors.
#pragma once
#include <extension.h>

#include <torch/csrc/Exceptions.h>

#include <utility>

namespace opwright {
namespace {

// A strong reference, taken and dropped under the GIL.
class Owned {
 public:
  explicit Owned(PyObject* object = nullptr) : object_(object) {}
  Owned(const Owned&) = delete;
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Owned() { Py_XDECREF(object_); }
  static Owned from(PyObject* borrowed) { return Owned(Py_NewRef(borrowed)); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// Also from a thread of the engine, which has no GIL.
struct WithGil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~WithGil() { PyGILState_Release(state); }
};

// python_error takes the error that is set in Python; torch raises it again where backward was called.
[[noreturn]] void throw_python_error() {
  python_error error;
  error.persist();
  throw std::move(error);
}

Owned checked(PyObject* object) {
  if (object == nullptr) throw_python_error();
  return Owned(object);
}

const at::Tensor& tensor_in(PyObject* object) {
  return *reinterpret_cast<at::Tensor*>(held_in(object));
}

Owned python_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return Owned::from(Py_None);
  return checked(to_python(reinterpret_cast<AtenTensorHandle>(const_cast<at::Tensor*>(&tensor))));
}

}  // namespace
}  // namespace opwright
