// Objects of Python in C++: references, Python's lock and errors, and torch's tensors.
#pragma once
#include <extension.h>

#include <torch/csrc/Exceptions.h>

#include <mutex>
#include <utility>
#include <vector>

namespace opwright {
namespace {

// A strong reference, taken and dropped under the GIL.
class Owned {
 public:
  Owned() : object_(nullptr) {}
  explicit Owned(PyObject* object) : object_(object) {}
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

// The GIL from take() on, also in a thread of autograd's engine, until give() or the end.
class Gil {
 public:
  Gil() = default;
  Gil(const Gil&) = delete;
  ~Gil() { give(); }
  void take() {
    if (!std::exchange(is_taken_, true)) state_ = PyGILState_Ensure();
  }
  void give() {
    if (std::exchange(is_taken_, false)) PyGILState_Release(state_);
  }

 private:
  PyGILState_STATE state_{};
  bool is_taken_ = false;
};

struct WithGil : Gil {
  WithGil() { take(); }
};

// What threads without the GIL have dropped, until one with it comes by, which is Python's main thread at the latest.
// Nobody waits for the lock, which a process that was forked may have inherited locked.
class Dropped {
 public:
  bool add(PyObject* object) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;
    objects_.push_back(object);
    if (objects_.size() == 1) Py_AddPendingCall(&free_all, this);
    return true;
  }

  // Under the GIL.
  void free() {
    std::vector<PyObject*> found;
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) found.swap(objects_);
    for (PyObject* each : found) Py_DECREF(each);
  }

 private:
  static int free_all(void* self) {
    static_cast<Dropped*>(self)->free();
    return 0;
  }

  std::mutex mutex_;
  std::vector<PyObject*> objects_;
};

Dropped& dropped() {
  static auto* const objects = new Dropped;  // never destroyed, as threads may outlive what is static
  return *objects;
}

// A strong reference that any thread may drop, as a rule without waiting for the GIL.
class Kept {
 public:
  explicit Kept(Owned object) : object_(object.release()) {}
  Kept(const Kept&) = delete;
  ~Kept() {
    if (object_ == nullptr || !Py_IsInitialized()) return;  // at the end of the process objects are left alone
    if (!PyGILState_Check() && dropped().add(object_)) return;
    WithGil with;
    Py_DECREF(object_);
  }
  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
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
