// Made by opwright: kernel "${kernel}" of ${qualname}.
// It includes the kernel's source and registers its host function ${entry} with the dispatcher
// through torch's stable ABI, under a name that contains the hash of everything it was built from.
#include <torch/csrc/stable/library.h>

#include "${source}"

namespace {
constexpr auto* opwright_function = ${pointer};
}

STABLE_TORCH_LIBRARY_FRAGMENT(${library}, m) {
  m.def("${schema}");
}

STABLE_TORCH_LIBRARY_IMPL(${library}, CompositeExplicitAutograd, m) {
  m.impl("${unique}", TORCH_BOX(opwright_function));
}

// For calls that are like an earlier one: without the dispatcher.
#ifdef OPWRIGHT_PYTHON
#include <python_call.h>

extern "C" PyObject* opwright_python_function(std::size_t tensor_offset, PyObject* (*wrap)(const void*)) {
  return opwright::python_function<opwright_function>(tensor_offset, wrap);
}
#endif
