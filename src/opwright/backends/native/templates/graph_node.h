// Nodes of ours in autograd's graph, with any release of torch.
#pragma once
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace torch::autograd {
TORCH_API void deleteNode(Node* function);  // of torch with shared_ptr, where nodes need it
}

namespace opwright {
namespace {

// shared_ptr until torch 2.13, intrusive_ptr since.
using NodePointer = decltype(torch::autograd::Edge::function);

template <class Made, class Pointer = NodePointer, class... Arguments>
Pointer new_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return Pointer(new Made(std::forward<Arguments>(arguments)...), torch::autograd::deleteNode);
  } else {
    return c10::make_intrusive<Made>(std::forward<Arguments>(arguments)...);
  }
}

// Since torch 2.14 a thread can have hooks on new nodes.
template <class Pointer>
void announce(const Pointer& node) {
#if __has_include(<torch/csrc/autograd/node_creation_hook.h>)
  torch::autograd::fire_node_creation_hooks(node);
#endif
}

}  // namespace
}  // namespace opwright
