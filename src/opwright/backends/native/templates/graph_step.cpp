// Calls that replay a pair of CUDA graphs, as one Python function: it copies the caller's tensors to the graphs' own,
// launches, and gives the outputs a node of autograd's graph, whose backward does the same with the other graph.
// runtime/cuda_graphs/replay.py does the same in Python. graph_step.py writes the tuples in the order in which they are
// read here.
#include <graph_node.h>
#include <python_objects.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using opwright::announce;
using opwright::checked;
using opwright::Kept;
using opwright::new_node;
using opwright::NodePointer;
using opwright::Owned;
using opwright::python_of;
using opwright::tensor_in;
using opwright::throw_python_error;
using opwright::WithGil;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

// cudaGraphExecMemcpyNodeSetParams1D.
using SetCopy = int (*)(void* executable, void* node, void* to, const void* from, std::size_t bytes, int kind);
constexpr int device_to_device = 3;

// Of a tuple of the description.
PyObject* item(PyObject* tuple, Py_ssize_t position) { return PyTuple_GET_ITEM(tuple, position); }

template <class Item>
auto each_of(PyObject* tuple, Item item_of) {
  std::vector<decltype(item_of(tuple))> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) found.push_back(item_of(item(tuple, i)));
  return found;
}

bool is_true(PyObject* object) { return object == Py_True; }

// Undefined for None.
at::Tensor tensor_or_none(PyObject* object) { return object == Py_None ? at::Tensor() : tensor_in(object); }

template <class Pointer>
Pointer pointer_in(PyObject* number) {
  return reinterpret_cast<Pointer>(PyLong_AsVoidPtr(number));
}

// A copy of the graph from a caller's tensor to its own.
struct Copy {
  void* node = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;
  const void* from = nullptr;  // that of the latest launch
};

class Graph {
 public:
  // What launches it, its own tensors, its executable (0: torch copies before a launch), its copies, SetCopy.
  explicit Graph(PyObject* described)
      : launch_(Owned::from(item(described, 0))),
        own_(each_of(item(described, 1), tensor_or_none)),
        executable_(pointer_in<void*>(item(described, 2))),
        copies_(each_of(item(described, 3), copy_in)),
        set_copy_(pointer_in<SetCopy>(item(described, 4))) {}

  const std::vector<at::Tensor>& own() const { return own_; }

  // On the current stream, under the GIL, with gradients off.
  void replay(const variable_list& tensors) {
    variable_list alive;  // until the launch
    for (std::size_t i = 0; i < own_.size(); ++i) {
      if (executable_ == nullptr) {
        own_[i].copy_(tensors[i]);
      } else if (copies_[i].node != nullptr) {
        alive.push_back(with_layout_of(own_[i], tensors[i]));
        copy_from(copies_[i], alive.back().const_data_ptr());
      }
    }
    checked(PyObject_CallNoArgs(launch_.get()));
  }

 private:
  static Copy copy_in(PyObject* described) {
    if (described == Py_None) return {};  // of no elements
    return {pointer_in<void*>(item(described, 0)), pointer_in<void*>(item(described, 1)),
            PyLong_AsSize_t(item(described, 2))};
  }

  // The tensor, or a copy with the memory layout of `own`, because a node copies bytes.
  static at::Tensor with_layout_of(const at::Tensor& own, const at::Tensor& tensor) {
    const bool is_like = own.is_contiguous() ? tensor.is_contiguous() : tensor.strides() == own.strides();
    if (is_like && !tensor.is_neg() && !tensor.is_conj()) return tensor;
    return at::empty_like(own).copy_(tensor);
  }

  void copy_from(Copy& copy, const void* from) {
    if (copy.from == from) return;
    const int status = set_copy_(executable_, copy.node, copy.to, from, copy.bytes, device_to_device);
    if (status != 0) throw std::runtime_error("the CUDA runtime refused a copy of a graph: " + std::to_string(status));
    copy.from = from;
  }

  const Kept launch_;
  std::vector<at::Tensor> own_;
  void* const executable_;
  std::vector<Copy> copies_;
  const SetCopy set_copy_;
};

// Why a backward does not run, as refuse takes it.
enum Refusal : long { second_derivative, freed, overwritten, subclass };

// The memory of one call, with its graphs. All of it is used under the GIL.
struct Step {
  std::string name;
  Kept refuse;                             // raises the error of a Refusal; takes it, and a tensor or None
  Graph forward;
  std::optional<Graph> backward;           // of the gradients of the differentiable outputs
  std::vector<bool> is_copied;             // for each tensor of a call; the others are read in place
  std::vector<at::Tensor> outputs;
  std::vector<bool> is_differentiable;     // for each of them
  std::vector<at::Tensor> gradients;       // for each tensor of a call, undefined where there is none
  std::vector<at::Tensor> watched;         // what the backward reads and others may modify
  std::vector<at::Tensor> lent;            // outputs and gradients that are the graphs' own memory
  std::vector<std::size_t> idle;           // the holders of each while nobody else has it
  std::weak_ptr<const void> lease;         // that of the latest call's node, as long as its backward may run
  std::vector<int64_t> versions;           // of what is watched, since the latest call

  explicit Step(PyObject* described)
      : name(PyUnicode_AsUTF8(item(described, 0))),
        refuse(Owned::from(item(described, 1))),
        forward(item(described, 2)),
        is_copied(flags_in(item(described, 4))),
        outputs(each_of(item(described, 5), tensor_or_none)),
        is_differentiable(flags_in(item(described, 6))),
        gradients(each_of(item(described, 7), tensor_or_none)),
        watched(each_of(item(described, 8), tensor_or_none)),
        lent(each_of(item(described, 9), tensor_or_none)),
        idle(holders()) {
    if (item(described, 3) != Py_None) backward.emplace(item(described, 3));
  }

  static std::vector<bool> flags_in(PyObject* tuple) {
    std::vector<bool> flags;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) flags.push_back(is_true(item(tuple, i)));
    return flags;
  }

  // Its backward can no longer run, and none of its outputs and gradients is in use.
  bool is_free() const { return lease.expired() && idle == holders(); }

  std::vector<int64_t> versions_now() const {
    std::vector<int64_t> found;
    for (const at::Tensor& each : watched) found.push_back(each.is_inference() ? 0 : each._version());
    return found;
  }

  // The gradients of the tensors of the latest call.
  variable_list run_backward(variable_list&& grads) {
    const at::AutoGradMode records(false);
    backward->replay(given(std::move(grads)));
    const bool may_run_again = torch::autograd::get_current_graph_task_keep_graph();
    if (!may_run_again) lease.reset();  // a reference to this iteration's loss does not block the memory
    variable_list found;
    for (const at::Tensor& each : gradients) {
      // The next backward writes into the same memory.
      found.push_back(!each.defined() ? each : may_run_again ? each.clone() : each.detach());
    }
    return found;
  }

  [[noreturn]] void raise(Refusal reason, const at::Tensor& tensor = {}) const {
    const Owned given = python_of(tensor);
    checked(PyObject_CallFunction(refuse.get(), "lO", static_cast<long>(reason), given.get()));
    throw std::runtime_error("a backward was refused");
  }

 private:
  variable_list given(variable_list&& grads) const {
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined() || grads[i]._is_zerotensor()) {
        grads[i] = at::zeros_like(backward->own()[i]);
      } else if (!is_plain_tensor(python_of(grads[i]).get())) {
        raise(subclass, grads[i]);
      }
    }
    return std::move(grads);
  }

  std::vector<std::size_t> holders() const {
    std::vector<std::size_t> found;
    for (const at::Tensor& each : lent) found.push_back(each.storage().use_count());
    return found;
  }
};

// One call in autograd's graph.
class ReplayedCall : public Node {
 public:
  ReplayedCall(std::shared_ptr<Step> step, torch::autograd::edge_list&& edges)
      : Node(std::move(edges)), step_(std::move(step)), lease_(std::make_shared<char>()) {
    step_->versions = step_->versions_now();
    step_->lease = lease_;
  }

  std::string name() const override { return step_->name; }

  variable_list apply(variable_list&& grads) override {
    WithGil with;
    refuse_what_is_gone();
    return step_->run_backward(std::move(grads));
  }

  // -- compiled autograd: the replay is one call in its graph, the same for all calls that this memory serves ----------

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    WithGil with;
    refuse_what_is_gone();  // in each backward; the rest of a graph that is compiled is not run again
    args.collect(reinterpret_cast<uint64_t>(step_.get()));
  }

  variable_list apply_with_saved(const variable_list& grads, torch::dynamo::autograd::SwapSavedVariables& saved) override {
    namespace compiled = torch::dynamo::autograd;
    const auto& interface = compiled::getPyCompilerInterface();
    const auto replay = [step = step_](const variable_list& given, const std::vector<c10::IValue>&) {
      WithGil with;
      return step->run_backward(variable_list(given));
    };
    const std::string function = interface->bind_function(saved.get_py_compiler(), name(), replay, {},
                                                          /*is_custom_function=*/true, /*is_traceable=*/false);
    const auto expected = compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
        compiled::get_input_metadata(next_edges()));
    return interface->call_function(saved.get_py_compiler(), "apply_functional", function, grads, {}, expected);
  }

 private:
  void refuse_what_is_gone() const {
    if (at::GradMode::is_enabled()) step_->raise(second_derivative);  // torch would treat the gradients as constants
    if (step_->lease.lock() != lease_) step_->raise(freed);
    if (step_->versions_now() != step_->versions) step_->raise(overwritten);
  }

  const std::shared_ptr<Step> step_;
  const std::shared_ptr<const void> lease_;
};

constexpr const char* capsule_name = "opwright.graph_step";

const std::shared_ptr<Step>& step_in(PyObject* capsule) {
  const auto* step = static_cast<std::shared_ptr<Step>*>(PyCapsule_GetPointer(capsule, capsule_name));
  if (step == nullptr) throw_python_error();
  return *step;
}

void delete_step(PyObject* capsule) {
  delete static_cast<std::shared_ptr<Step>*>(PyCapsule_GetPointer(capsule, capsule_name));
}

variable_list replay_forward(Step& step, PyObject* const* tensors) {
  const at::AutoGradMode records(false);
  variable_list copied, outputs;
  for (std::size_t i = 0; i < step.is_copied.size(); ++i) {
    if (step.is_copied[i]) copied.push_back(tensor_in(tensors[i]));
  }
  step.forward.replay(copied);
  for (const at::Tensor& each : step.outputs) outputs.push_back(each.detach());
  return outputs;
}

void track(const std::shared_ptr<Step>& step, PyObject* const* tensors, const variable_list& outputs) {
  torch::autograd::edge_list edges;
  for (std::size_t i = 0; i < step->is_copied.size(); ++i) {
    const at::Tensor& tensor = tensor_in(tensors[i]);
    edges.push_back(tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor) : Edge());
  }
  const NodePointer node = new_node<ReplayedCall>(step, std::move(edges));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!step->is_differentiable[i]) continue;
    torch::autograd::impl::set_gradient_edge(outputs[i], {node, node->add_input_metadata(outputs[i])});
  }
  announce(node);
}

// Takes the tensors of a call, returns a tuple of its outputs.
PyObject* replay(PyObject* self, PyObject* const* tensors, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  const std::shared_ptr<Step>& step = step_in(self);
  opwright::dropped().free();
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (static_cast<std::size_t>(count) != step->is_copied.size() || !is_plain_tensor(tensors[i])) {
      PyErr_SetString(PyExc_TypeError, "the tensors are not those of the captured call");
      return nullptr;
    }
  }
  const variable_list outputs = replay_forward(*step, tensors);
  if (step->backward) track(step, tensors, outputs);
  Owned found = checked(PyTuple_New(static_cast<Py_ssize_t>(outputs.size())));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    PyTuple_SET_ITEM(found.get(), static_cast<Py_ssize_t>(i), python_of(outputs[i]).release());
  }
  return found.release();
  END_HANDLE_TH_ERRORS
}

PyObject* is_free(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  return PyBool_FromLong(step_in(self)->is_free());
  END_HANDLE_TH_ERRORS
}

PyMethodDef replay_definition = {"replay", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&replay)),
                                 METH_FASTCALL, nullptr};
PyMethodDef is_free_definition = {"is_free", &is_free, METH_NOARGS, nullptr};

}  // namespace

// A pair of functions: one that replays a call, one that tells whether the described step is free, as it is now.
extern "C" PyObject* opwright_graph_step(PyObject* described) {
  HANDLE_TH_ERRORS
  auto step = std::make_unique<std::shared_ptr<Step>>(std::make_shared<Step>(described));
  if (PyErr_Occurred()) return nullptr;  // of a number
  const Owned capsule = checked(PyCapsule_New(step.get(), capsule_name, &delete_step));
  step.release();
  const Owned replays = checked(PyCFunction_New(&replay_definition, capsule.get()));
  const Owned tells = checked(PyCFunction_New(&is_free_definition, capsule.get()));
  return PyTuple_Pack(2, replays.get(), tells.get());
  END_HANDLE_TH_ERRORS
}
