// Calls that autograd tracks, like an earlier one, as one Python function: it runs a kernel and gives its outputs a node
// of autograd's graph. What is not as described goes to Python's way, torch.autograd.Function.
// extension.py writes the numbers of a description in the order in which they are read here.
#pragma once
#include <graph_node.h>
#include <guarded_call.h>
#include <operations.h>
#include <unchanged.h>

#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using opwright::announce;
using opwright::checked;
using opwright::Gil;
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
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// The functions and constants of a description, in a tuple, so that Python's garbage collector sees them.
enum Held : Py_ssize_t {
  held_description,
  held_name,
  held_run,         // the kernel: takes the arguments
  held_again,       // Python's way for an output that is not as described: takes it, then the arguments
  held_needs,       // for each argument whether its gradient is needed, a tuple
  held_gradients,   // the gradients of the arguments: takes the saved values, needs, and the outputs' gradients
  held_refuse,      // raises the error for a gradient that is neither a tensor nor None, or of an argument without one
  held_tapes,       // a list of recorded gradients: a tape, what must be unchanged, and the other values that it is for
  held_watched,     // what must be unchanged for the sources to be these
  held_is_same,     // takes two results, tuples
  held_drop,        // drops recordings; takes whether Python gives the same result each time
  held_count
};

struct Description {
  Py_ssize_t arguments;
  std::vector<bool> is_tensor;   // for each argument
  std::vector<int64_t> sources;  // what is saved: the position of an argument, or -1 - that of an output
  int64_t outputs;               // of the kernel: 0 for a single tensor, else the items of a tuple
  int64_t visible;               // the first of them, which the caller gets; the others are saved only
  bool materialize_grads;        // whether an output that nothing depends on has a gradient of zeros, or None
};

Description read_description(const int64_t* next) {
  Description description{};
  description.arguments = *next++;
  for (Py_ssize_t i = 0; i < description.arguments; ++i) description.is_tensor.push_back(*next++ != 0);
  for (int64_t left = *next++; left > 0; --left) description.sources.push_back(*next++);
  description.outputs = *next++;
  description.visible = *next++;
  description.materialize_grads = *next++ != 0;
  return description;
}

constexpr const char* capsule_name = "opwright.tracked_call";

constexpr const char* tape_capsule_name = "opwright.tape";

// A tape in Python: a tuple of its capsule and of what its steps call.
const opwright::Tape* tape_in(PyObject* object) {
  PyObject* capsule = opwright::TapeReader::item(object, 0);
  const auto* tape = static_cast<const opwright::Tape*>(PyCapsule_GetPointer(capsule, tape_capsule_name));
  if (tape == nullptr) throw_python_error();
  return tape;
}

PyObject* calls_in(PyObject* object) { return opwright::TapeReader::item(object, 1); }

void delete_tape(PyObject* capsule) {
  delete static_cast<const opwright::Tape*>(PyCapsule_GetPointer(capsule, tape_capsule_name));
}

// A tape, and what its steps call: parts of an object that is held.
struct Recorded {
  const opwright::Tape* tape = nullptr;
  PyObject* calls = nullptr;
  Owned held;
};

// The switch of fast calls, and the settings that it stands for (is_intercepted); in any thread.
bool fast_calls_are_blocked() {
  return opwright::reasons_against.load(std::memory_order_relaxed) != 0 || at::globalContext().deterministicAlgorithms();
}

variable_list tensors_in(PyObject* tuple) {
  variable_list tensors;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    PyObject* each = PyTuple_GET_ITEM(tuple, i);
    if (!is_plain_tensor(each)) throw std::invalid_argument("an input of a recorded gradient must be a plain tensor");
    tensors.push_back(tensor_in(each));
  }
  return tensors;
}

// One call in autograd's graph.
class TrackedCall : public Node {
 public:
  TrackedCall(PyObject* self, const Description& description) : self_(Owned::from(self)), description_(description) {}

  std::string name() const override {
    const char* name = PyUnicode_AsUTF8(held(held_name));
    return name == nullptr ? "opwright" : name;
  }

  void save(PyObject* const* arguments, const std::vector<PyObject*>& outputs) {
    tensors_.reserve(description_.sources.size());
    std::vector<PyObject*> others;
    for (const int64_t source : description_.sources) {
      if (source < 0) {
        const int64_t output = -1 - source;
        tensors_.emplace_back(tensor_in(outputs[output]), /*is_output=*/output < description_.visible);
      } else if (description_.is_tensor[source]) {
        tensors_.emplace_back(tensor_in(arguments[source]), /*is_output=*/false);
      } else {
        others.push_back(arguments[source]);
      }
    }
    if (others.empty()) return;
    others_ = std::make_shared<const Kept>(tuple_of(others.size(), [&](std::size_t i) { return Owned::from(others[i]); }));
  }

  variable_list apply(variable_list&& grads) override {
    variable_list inputs;  // the saved tensors, then the incoming gradients
    Others others;
    {
      const std::lock_guard lock(mutex_);
      if (is_released_) throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
      inputs.reserve(tensors_.size() + grads.size());
      for (const SavedVariable& each : tensors_) inputs.push_back(each.unpack(getptr()));
      others = others_;
    }
    const bool has_all = append_gradients(inputs, grads);
    grads.clear();
    Gil gil;
    gil.take();
    const bool is_plain = !has_all || at::GradMode::is_enabled() || fast_calls_are_blocked();
    const Recorded recorded = is_plain ? Recorded{} : recorded_for(inputs, others);
    if (recorded.tape == nullptr) return gradients(inputs, others);
    if (!recorded.tape->is_verified_now()) return recorded.tape->run(std::move(inputs), recorded.calls, gil);
    const variable_list found = recorded.tape->run(inputs, recorded.calls, gil);
    gil.take();
    variable_list expected = gradients(inputs, others);
    if (!are_same(found, expected)) drop(are_same(expected, gradients(inputs, others)));
    return expected;
  }

  void release_variables() override { forget(/*is_released=*/true); }

#if __has_include(<torch/csrc/autograd/node.h>)
  // Since torch 2.14, where only weak references may be left: what is saved is freed with the last strong one.
  void release_resources() override {
    forget(/*is_released=*/false);
    Node::release_resources();
  }
#endif

  // -- compiled autograd: the gradient is one call in its graph, which is not traced into ------------------------------

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    args.collect(reinterpret_cast<uint64_t>(&description_));
    for (const SavedVariable& each : tensors_) args.collect(each, /*is_output=*/true);  // unpacked as in apply
    for (Py_ssize_t i = 0; others_ && i < PyTuple_GET_SIZE(others_->get()); ++i) {
      args.collect(reinterpret_cast<uint64_t>(PyTuple_GET_ITEM(others_->get(), i)));
    }
    for (uint32_t i = 0; i < num_inputs(); ++i) {
      for (const c10::SymInt& size : input_metadata(i).shape_as_dim_vector()) {
        args.collect(static_cast<uint64_t>(size.as_int_unchecked()));  // for a gradient of zeros
      }
    }
  }

  variable_list apply_with_saved(const variable_list& grads, torch::dynamo::autograd::SwapSavedVariables& saved) override {
    namespace compiled = torch::dynamo::autograd;
    variable_list tensors;
    for (SavedVariable& each : tensors_) {
      saved.before(each);
      tensors.push_back(each.unpack(getptr()));
    }
    compiled::PackedArgs packed;
    packed.pack(tensors);
    const std::vector<c10::IValue>& values = packed.vec();
    const auto& interface = compiled::getPyCompilerInterface();
    const std::string function = interface->bind_function(saved.get_py_compiler(), name(), on_tensors(), {values[0].type()},
                                                          /*is_custom_function=*/true, /*is_traceable=*/false);
    const auto expected = compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
        compiled::get_input_metadata(next_edges()));
    variable_list found = interface->call_function(saved.get_py_compiler(), "apply_functional", function, grads, values, expected);
    for (SavedVariable& each : tensors_) saved.after(each);
    return found;
  }

 private:
  using Others = std::shared_ptr<const Kept>;

  // In each thread of the engine; the GIL is not waited for.
  void forget(bool is_released) {
    const std::lock_guard lock(mutex_);
    tensors_.clear();
    others_.reset();
    is_released_ |= is_released;
  }

  // A function of gradients and saved tensors, for graphs that outlive this node.
  torch::dynamo::autograd::functional_apply_t on_tensors() const {
    WithGil with;
    auto twin = std::make_shared<TrackedCall>(self_.get(), description_);
    for (uint32_t i = 0; i < num_inputs(); ++i) twin->zeros_.push_back(input_metadata(i));
    twin->set_next_edges(torch::autograd::edge_list(num_outputs()));
    twin->others_ = others_;
    return [twin](const variable_list& grads, const std::vector<c10::IValue>& values) {
      variable_list inputs = torch::dynamo::autograd::PackedArgs(values).unpack<variable_list>();
      twin->append_gradients(inputs, grads);
      WithGil with;
      return twin->gradients(inputs, twin->others_);
    };
  }

  // Appends the gradient of each output, and says whether all are tensors: one that nothing depends on is undefined, or
  // zeros, as autograd.Function has it (ctx.set_materialize_grads).
  bool append_gradients(variable_list& inputs, const variable_list& grads) const {
    bool has_all = true;
    for (std::size_t i = 0; i < grads.size(); ++i) {
      const bool is_none = !grads[i].defined();
      inputs.push_back(is_none && description_.materialize_grads ? metadata_of(i).zeros_like() : grads[i]);
      has_all &= inputs.back().defined();
    }
    return has_all;
  }

  PyObject* held(Held which) const { return PyTuple_GET_ITEM(self_.get(), which); }

  Recorded recorded_for(const variable_list& inputs, const Others& others) const {
    PyObject* tapes = held(held_tapes);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tapes); ++i) {
      Owned each = Owned::from(PyList_GET_ITEM(tapes, i));  // another thread may drop it
      PyObject* object = PyTuple_GET_ITEM(each.get(), 0);
      const opwright::Tape* tape = tape_in(object);
      if (tape->is_for(inputs) && are_values(others, PyTuple_GET_ITEM(each.get(), 2)) &&
          opwright::is_unchanged(PyTuple_GET_ITEM(each.get(), 1))) {
        return {tape, calls_in(object), std::move(each)};
      }
    }
    return {};
  }

  // Whether what else is saved is what a recording was made for.
  static bool are_values(const Others& others, PyObject* expected) {
    const Py_ssize_t count = others ? PyTuple_GET_SIZE(others->get()) : 0;
    if (count != PyTuple_GET_SIZE(expected)) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      const int is_one = opwright::is_constant(PyTuple_GET_ITEM(others->get(), i), PyTuple_GET_ITEM(expected, i));
      if (is_one < 0) throw_python_error();
      if (is_one == 0) return false;
    }
    return true;
  }

  bool are_same(const variable_list& found, const variable_list& expected) const {
    const auto in_python = [](const variable_list& tensors) {
      return tuple_of(tensors.size(), [&](std::size_t i) { return python_of(tensors[i]); });
    };
    const Owned one = in_python(found), other = in_python(expected);
    const Owned answer = checked(PyObject_CallFunctionObjArgs(held(held_is_same), one.get(), other.get(), nullptr));
    return answer.get() == Py_True;
  }

  void drop(bool is_wrong) const {
    checked(PyObject_CallFunctionObjArgs(held(held_drop), is_wrong ? Py_True : Py_False, nullptr));
  }

  // Computed in Python, from the saved tensors and the incoming gradients, and what else is saved.
  variable_list gradients(const variable_list& inputs, const Others& others) const {
    std::size_t next_tensor = 0;
    Py_ssize_t next_other = 0;
    const auto next_input = [&] { return python_of(inputs[next_tensor++]); };
    const auto is_other = [&](int64_t source) { return source >= 0 && !description_.is_tensor[source]; };
    const auto& sources = description_.sources;
    const Owned values = tuple_of(sources.size(), [&](std::size_t i) {
      return is_other(sources[i]) ? Owned::from(PyTuple_GET_ITEM(others->get(), next_other++)) : next_input();
    });
    const Owned incoming = tuple_of(inputs.size() - next_tensor, [&](std::size_t) { return next_input(); });
    PyObject* arguments[] = {values.get(), held(held_needs), incoming.get()};
    Owned found = checked(PyObject_Vectorcall(held(held_gradients), arguments, 3, nullptr));
    return taken(found.get());
  }

  template <class Item>
  static Owned tuple_of(std::size_t count, Item item) {
    Owned tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(count)));
    for (std::size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), item(i).release());
    return tuple;
  }

  const torch::autograd::InputMetadata& metadata_of(std::size_t output) const {
    return zeros_.empty() ? input_metadata(output) : zeros_[output];
  }

  // The gradients of the tensors among the arguments, from a tuple of one for each argument, or of fewer.
  variable_list taken(PyObject* found) const {
    variable_list gradients;
    gradients.reserve(num_outputs());
    const Py_ssize_t count = PyTuple_GET_SIZE(found);
    for (Py_ssize_t i = 0; i < description_.arguments; ++i) {
      PyObject* each = i < count ? PyTuple_GET_ITEM(found, i) : Py_None;
      const bool is_none = each == Py_None;
      if (!is_none && !(description_.is_tensor[i] && PyObject_TypeCheck(each, tensor_type))) refuse(i, each);
      if (description_.is_tensor[i]) gradients.push_back(is_none ? at::Tensor() : tensor_in(each));
    }
    return gradients;
  }

  [[noreturn]] void refuse(Py_ssize_t position, PyObject* gradient) const {
    checked(PyObject_CallFunction(held(held_refuse), "nOO", position, gradient, description_.is_tensor[position] ? Py_True : Py_False));
    throw std::runtime_error("a gradient is neither a tensor nor None");
  }

  const Kept self_;
  const Description& description_;  // a part of self_
  std::vector<SavedVariable> tensors_;
  Others others_;  // a tuple of what else is saved, or nothing
  std::vector<torch::autograd::InputMetadata> zeros_;  // of a node that is in no graph
  bool is_released_ = false;
};

// One output of the kernel is a new tensor, which nothing else knows: autograd has nothing to keep of it.
bool is_new(PyObject* output, PyObject* const* arguments, const Description& description) {
  if (!Py_IS_TYPE(output, tensor_type)) return false;
  const at::Tensor& tensor = tensor_in(output);
  if (tensor.unsafeGetTensorImpl()->autograd_meta() != nullptr || tensor.is_inference()) return false;
  if (!torch::autograd::isDifferentiableType(tensor.scalar_type())) return false;
  for (Py_ssize_t i = 0; i < description.arguments; ++i) {
    if (description.is_tensor[i] && tensor_in(arguments[i]).is_same(tensor)) return false;
  }
  return true;
}

// The kernel's outputs; empty if they are not as described.
std::vector<PyObject*> outputs_in(PyObject* result, PyObject* const* arguments, const Description& description) {
  std::vector<PyObject*> outputs;
  if (description.outputs == 0) {
    outputs.push_back(result);
  } else if (PyTuple_Check(result) && PyTuple_GET_SIZE(result) == description.outputs) {
    for (Py_ssize_t i = 0; i < description.outputs; ++i) outputs.push_back(PyTuple_GET_ITEM(result, i));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    bool is_described = static_cast<int64_t>(i) < description.visible
                            ? is_new(outputs[i], arguments, description)
                            : Py_IS_TYPE(outputs[i], tensor_type) != 0;
    for (std::size_t j = 0; j < i; ++j) is_described = is_described && outputs[i] != outputs[j];
    if (!is_described) return {};
  }
  return outputs;
}

void track(PyObject* self, const Description& description, PyObject* const* arguments,
           const std::vector<PyObject*>& outputs, torch::autograd::edge_list&& edges) {
  const NodePointer pointer = new_node<TrackedCall>(self, description);
  auto* node = static_cast<TrackedCall*>(pointer.get());
  node->set_next_edges(std::move(edges));
  for (int64_t i = 0; i < description.visible; ++i) {
    const at::Tensor& output = tensor_in(outputs[i]);
    torch::autograd::impl::set_gradient_edge(output, {pointer, node->add_input_metadata(output)});
  }
  node->save(arguments, outputs);
  announce(pointer);
}

torch::autograd::edge_list edges_of(PyObject* const* arguments, const Description& description) {
  torch::autograd::edge_list edges;
  edges.reserve(description.arguments);
  for (Py_ssize_t i = 0; i < description.arguments; ++i) {
    if (!description.is_tensor[i]) continue;
    const at::Tensor& tensor = tensor_in(arguments[i]);
    edges.push_back(tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor) : Edge());
  }
  return edges;
}

PyObject* visible(Owned result, const std::vector<PyObject*>& outputs, const Description& description) {
  if (description.outputs == 0 || description.visible == description.outputs) return result.release();
  if (description.visible == 1) return Py_NewRef(outputs[0]);
  return PyTuple_GetSlice(result.get(), 0, description.visible);
}

PyObject* in_python(PyObject* self, PyObject* result, PyObject* const* arguments, Py_ssize_t count) {
  std::vector<PyObject*> all{result};
  all.insert(all.end(), arguments, arguments + count);
  return PyObject_Vectorcall(PyTuple_GET_ITEM(self, held_again), all.data(), all.size(), nullptr);
}

// As torch's dispatcher runs a kernel in the forward of an autograd.Function.
PyObject* run_below_autograd(PyObject* run, PyObject* const* arguments, Py_ssize_t count) {
  const at::AutoGradMode records(false);
  const at::AutoDispatchBelowAutograd below;
  return PyObject_Vectorcall(run, arguments, count, nullptr);
}

// The arguments as they are before the kernel runs, which may write a list, as the caller may before the backward.
class Unchanging {
 public:
  Unchanging(PyObject* const* arguments, Py_ssize_t count) : arguments_(arguments) {
    if (std::none_of(arguments, arguments + count, [](PyObject* each) { return PyList_CheckExact(each); })) return;
    copies_.assign(arguments, arguments + count);
    for (PyObject*& each : copies_) {
      if (!PyList_CheckExact(each)) continue;
      lists_.push_back(checked(PyList_GetSlice(each, 0, PyList_GET_SIZE(each))));
      each = lists_.back().get();
    }
    arguments_ = copies_.data();
  }
  Unchanging(const Unchanging&) = delete;
  Unchanging& operator=(const Unchanging&) = delete;

  PyObject* const* arguments() const { return arguments_; }

 private:
  PyObject* const* arguments_;
  std::vector<PyObject*> copies_;
  std::vector<Owned> lists_;
};

PyObject* call(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  const auto* description = static_cast<Description*>(PyCapsule_GetPointer(PyTuple_GET_ITEM(self, held_description), capsule_name));
  if (description == nullptr) return nullptr;
  opwright::dropped().free();
  for (Py_ssize_t i = 0; i < description->arguments; ++i) {
    if (count != description->arguments || (description->is_tensor[i] && !is_plain_tensor(arguments[i]))) {
      PyErr_SetString(PyExc_TypeError, "the arguments are not those of the guard");
      return nullptr;
    }
  }
  const Unchanging saved(arguments, count);
  Owned result(run_below_autograd(PyTuple_GET_ITEM(self, held_run), arguments, count));
  if (!result) return nullptr;
  const std::vector<PyObject*> outputs = outputs_in(result.get(), arguments, *description);
  const bool is_described = !outputs.empty() && opwright::is_unchanged(PyTuple_GET_ITEM(self, held_watched));
  if (!is_described) return in_python(self, result.get(), saved.arguments(), count);
  track(self, *description, saved.arguments(), outputs, edges_of(arguments, *description));
  return visible(std::move(result), outputs, *description);
  END_HANDLE_TH_ERRORS
}

PyMethodDef definition = {"tracked_call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call)),
                          METH_FASTCALL, nullptr};

void delete_description(PyObject* capsule) { delete static_cast<Description*>(PyCapsule_GetPointer(capsule, capsule_name)); }

}  // namespace

// A function for the described calls; `held` is a tuple of what follows the description in Held.
extern "C" PyObject* opwright_tracked_call(const int64_t* numbers, PyObject* held) {
  Owned capsule(PyCapsule_New(new Description(read_description(numbers)), capsule_name, &delete_description));
  Owned self(PyTuple_New(held_count));
  if (!capsule || !self || PyTuple_GET_SIZE(held) != held_count - 1) return nullptr;
  PyTuple_SET_ITEM(self.get(), held_description, capsule.release());
  for (Py_ssize_t i = 1; i < held_count; ++i) PyTuple_SET_ITEM(self.get(), i, Py_NewRef(PyTuple_GET_ITEM(held, i - 1)));
  return PyCFunction_New(&definition, self.get());
}

// A tape of these operations for inputs like these. `calls` has for each of them what is called instead, or None.
extern "C" PyObject* opwright_tape(PyObject* description, PyObject* inputs, PyObject* calls) {
  HANDLE_TH_ERRORS
  auto tape = std::make_unique<const opwright::Tape>(description, tensors_in(inputs), calls);
  const Owned capsule =
      checked(PyCapsule_New(const_cast<opwright::Tape*>(tape.get()), tape_capsule_name, &delete_tape));
  tape.release();
  return PyTuple_Pack(2, capsule.get(), calls);
  END_HANDLE_TH_ERRORS
}

// Its results, a tuple of tensors and None; None if it is not for such inputs here and now.
extern "C" PyObject* opwright_run_tape(PyObject* object, PyObject* inputs) {
  HANDLE_TH_ERRORS
  const opwright::Tape* tape = tape_in(object);
  variable_list tensors = tensors_in(inputs);
  if (!tape->is_for(tensors)) return Py_NewRef(Py_None);
  const at::AutoGradMode records(false);
  Gil gil;
  const variable_list found = tape->run(std::move(tensors), calls_in(object), gil);
  Owned results = checked(PyTuple_New(static_cast<Py_ssize_t>(found.size())));
  for (std::size_t i = 0; i < found.size(); ++i) PyTuple_SET_ITEM(results.get(), static_cast<Py_ssize_t>(i), python_of(found[i]).release());
  return results.release();
  END_HANDLE_TH_ERRORS
}
