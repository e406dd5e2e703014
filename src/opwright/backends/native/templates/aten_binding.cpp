// Made by opwright: kernel "${kernel}" of ${qualname}.
// It includes the kernel's source and registers its host function ${entry} with the dispatcher, under a name that
// contains the hash of everything it was built from. Numbers are converted to the types that the function takes.
#include <opwright/aten.h>

#include "${source}"

namespace {
constexpr auto* opwright_function = ${pointer};

${declaration} {
  return opwright::returned<${result}>([&] { return opwright_function(${arguments}); });
}
}  // namespace

TORCH_LIBRARY_FRAGMENT(${library}, m) {
  m.def("${schema}", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(opwright_kernel)));
}
