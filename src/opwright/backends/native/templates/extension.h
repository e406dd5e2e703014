// What every extension of ours begins with (extension.py): the types of plain tensors, and access to them.
#pragma once
#include <python_tensor.h>

namespace {

PyTypeObject* tensor_type = nullptr;
PyTypeObject* parameter_type = nullptr;

bool is_plain_tensor(PyObject* object) { return Py_IS_TYPE(object, tensor_type) || Py_IS_TYPE(object, parameter_type); }

}  // namespace

// Called before anything else. Offset and wrapper are known if torch has no functions for them.
extern "C" void opwright_reach_tensors(PyObject* type, PyObject* parameter, std::size_t offset,
                                       PyObject* (*wrap)(const void*)) {
  tensor_type = reinterpret_cast<PyTypeObject*>(type);
  parameter_type = reinterpret_cast<PyTypeObject*>(parameter);
  opwright::tensor_offset = offset;
  opwright::wrap = wrap;
}
