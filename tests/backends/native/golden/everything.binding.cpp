// Made by opwright: kernel "k" of demo::everything.
// It includes the kernel's source and registers its host function everything with the dispatcher
// through torch's stable ABI, under a name that contains the hash of everything it was built from.
#include <torch/csrc/stable/library.h>

#include "/somewhere/kernel.cpp"

namespace {
constexpr auto* opwright_function = &everything;
}

STABLE_TORCH_LIBRARY_FRAGMENT(opwright_kernels, m) {
  m.def("demo_everything_0123(Tensor x, Tensor[] xs, int i, float a, bool b, str s, int[] sizes, ScalarType dt, Tensor? o=None, *, int? k=None, str mode=\"a\") -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(opwright_kernels, CompositeExplicitAutograd, m) {
  m.impl("demo_everything_0123", TORCH_BOX(opwright_function));
}

// For calls that are like an earlier one: without the dispatcher.
#ifdef OPWRIGHT_PYTHON
#include <python_call.h>

extern "C" PyObject* opwright_python_function(std::size_t tensor_offset, PyObject* (*wrap)(const void*)) {
  return opwright::python_function<opwright_function>(tensor_offset, wrap);
}
#endif
