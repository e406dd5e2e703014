// Tensors between Python and C++ through torch's C interface, and other parts that Python functions in C++ share.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstddef>
#include <exception>
#include <stdexcept>

// Functions of torch 2.14 and later. A library that is built here also runs with earlier versions.
extern "C" __attribute__((weak)) AOTITorchError torch_tensor_from_pyobject(void* object, AtenTensorHandle* made);
extern "C" __attribute__((weak)) AOTITorchError torch_tensor_to_pyobject(AtenTensorHandle, void* type, void** made);

// A library for Python's stable ABI also loads where there is no Python, as its functions are weak there.
#ifdef Py_LIMITED_API
#pragma weak PyCFunction_NewEx
#pragma weak PyCMethod_New
#pragma weak PyErr_Format
#pragma weak PyErr_Occurred
#pragma weak PyErr_SetString
#pragma weak PyEval_RestoreThread
#pragma weak PyEval_SaveThread
#pragma weak PyExc_IndexError
#pragma weak PyExc_MemoryError
#pragma weak PyExc_OverflowError
#pragma weak PyExc_RuntimeError
#pragma weak PyExc_TypeError
#pragma weak PyExc_ValueError
#pragma weak PyFloat_AsDouble
#pragma weak PyLong_AsLongLong
#pragma weak PyObject_IsTrue
#pragma weak PyTuple_New
#pragma weak PyTuple_SetItem
#pragma weak Py_DecRef
#pragma weak Py_IncRef
#pragma weak _Py_Dealloc
#pragma weak _Py_DecRef
#pragma weak _Py_IncRef
#pragma weak _Py_NoneStruct
#endif

namespace opwright {
// Nothing here is shared with another shared object, which may contain an earlier version of the same kernel.
namespace {

// The offset of the at::Tensor in a Python tensor, or 0 if it is not known; and torch's own function that wraps one.
// Both are known if torch does not have the functions above.
std::size_t tensor_offset = 0;
PyObject* (*wrap)(const void*) = nullptr;

struct PythonError : std::exception {};  // Python's own error is set

void check(AOTITorchError error) {
  if (error != AOTI_TORCH_SUCCESS) throw std::runtime_error("a tensor could not be passed between Python and C++");
}

// A handle that is deleted with it.
struct OwnHandle {
  AtenTensorHandle handle = nullptr;
  OwnHandle() = default;
  OwnHandle(const OwnHandle&) = delete;
  ~OwnHandle() {
    if (handle != nullptr) aoti_torch_delete_tensor_object(handle);
  }
};

AtenTensorHandle held_in(PyObject* object) {
  return reinterpret_cast<AtenTensorHandle>(reinterpret_cast<char*>(object) + tensor_offset);
}

// The caller deletes it.
AtenTensorHandle new_handle(PyObject* object) {
  AtenTensorHandle handle = nullptr;
  check(torch_tensor_from_pyobject ? torch_tensor_from_pyobject(object, &handle)
                                   : aoti_torch_new_tensor_handle(held_in(object), &handle));
  return handle;
}

// A handle that is valid while the object and this exist: the object's own if possible, because a new one costs 0.06 µs.
struct HandleOf {
  OwnHandle own;
  AtenTensorHandle handle;
  explicit HandleOf(PyObject* object) {
    if (tensor_offset == 0) own.handle = new_handle(object);
    handle = tensor_offset == 0 ? own.handle : held_in(object);
  }
};

// The caller keeps the handle.
PyObject* to_python(AtenTensorHandle tensor) {
  if (!torch_tensor_to_pyobject) return wrap(tensor);
  void* made = nullptr;
  check(torch_tensor_to_pyobject(tensor, nullptr, &made));
  return static_cast<PyObject*>(made);
}

// Other Python threads run meanwhile, as in a call through the dispatcher.
struct WithoutGil {
  PyThreadState* state = PyEval_SaveThread();
  ~WithoutGil() { PyEval_RestoreThread(state); }
};

}  // namespace
}  // namespace opwright
