// Made by opwright: kernel "${kernel}" of ${qualname}, for a package.
// It includes the kernel's source and registers its host function ${entry} with the dispatcher through torch's stable
// ABI, under a name that contains the hash of everything it was built from. Needs no Python.
#include <torch/csrc/stable/library.h>

#include "${source}"

STABLE_TORCH_LIBRARY_FRAGMENT(opwright_shipped, m) {
  m.def("${schema}");
}

STABLE_TORCH_LIBRARY_IMPL(opwright_shipped, CompositeExplicitAutograd, m) {
  m.impl("${unique}", TORCH_BOX(&${entry}));
}
