// Names that recorded code uses, compared with what they were. known_code.py lists them.
#pragma once
#include <python_objects.h>

#include <atomic>
#include <cstdint>

namespace opwright {
namespace {

// Which repetitions are made both ways and compared: the first ones of each recording, and one of so many later ones.
std::atomic<int64_t> first_verified{2}, verified_of{4096};

bool is_verified(int64_t repetition) { return repetition < first_verified || repetition % verified_of == verified_of - 1; }

// What stands for a name that has no value in known_code.py.
PyObject* absent() { return Py_NotImplemented; }

// The value of a name now, borrowed: in a dictionary (of a module, or of builtins), a cell, a class, or a field of a
// function. Null without an error if it has none.
PyObject* value_of(PyObject* holder, PyObject* name) {
  if (PyDict_Check(holder)) return PyDict_GetItemWithError(holder, name);
  if (PyCell_Check(holder)) return PyCell_GET(holder);
  if (PyType_Check(holder)) return _PyType_Lookup(reinterpret_cast<PyTypeObject*>(holder), name);
  if (PyFunction_Check(holder)) {
    const auto is = [&](const char* field) { return PyUnicode_CompareWithASCIIString(name, field) == 0; };
    PyObject* found = nullptr;
    if (is("__code__")) found = PyFunction_GET_CODE(holder);
    if (is("__defaults__")) found = PyFunction_GET_DEFAULTS(holder);
    if (is("__kwdefaults__")) found = PyFunction_GET_KW_DEFAULTS(holder);
    if (is("__closure__")) found = PyFunction_GET_CLOSURE(holder);
    return found == nullptr ? Py_None : found;
  }
  if (PyList_Check(holder)) return PyList_GET_SIZE(holder) == 0 ? nullptr : holder;  // such as hooks, while there are none
  PyErr_SetString(PyExc_TypeError, "a name is watched in a holder of an unknown kind");
  return nullptr;
}

// Whether all names have their values: `watched` is a tuple of (holder, name, value).
bool is_unchanged(PyObject* watched) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(watched); ++i) {
    PyObject* each = PyTuple_GET_ITEM(watched, i);
    PyObject* value = value_of(PyTuple_GET_ITEM(each, 0), PyTuple_GET_ITEM(each, 1));
    if (value == nullptr && PyErr_Occurred()) throw_python_error();
    if ((value == nullptr ? absent() : value) != PyTuple_GET_ITEM(each, 2)) return false;
  }
  return true;
}

}  // namespace
}  // namespace opwright
