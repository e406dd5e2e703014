// Calls of a kernel that are like an earlier one, each as one function of Python's: takes the addresses of tensors,
// allocates the outputs, and runs. Whatever a plan did not foresee goes to a Python function, which says what is wrong.
// The numbers of a plan are written by planned_call.py, in the order in which they are read here.
#include <python_tensor.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace {

using opwright::check;

// A plan with more is not asked for: words and outputs of a call are on the stack.
constexpr std::size_t most_words = OPWRIGHT_MOST_WORDS;
constexpr std::size_t room = 1000;  // for what a kernel says when it raises

// Of a library, as mojo_source.cpu_entry_text declares it; the driver's cuLaunchKernel; torch's current stream and device.
using Entry = int32_t (*)(const int64_t* words, const int64_t* sizes, char* message, int64_t room);
using LaunchKernel = int (*)(void* kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared,
                             void* stream, void** parameters, void** extra);
using CurrentStream = AOTITorchError (*)(int32_t device, void** stream);
using CurrentDevice = AOTITorchError (*)(int32_t* device);

PyTypeObject* tensor_type = nullptr;
PyTypeObject* parameter_type = nullptr;

class Numbers {
 public:
  explicit Numbers(const int64_t* first) : next(first) {}
  int64_t one() { return *next++; }
  std::vector<int64_t> some(int64_t count) {
    const int64_t* first = next;
    next += count;
    return {first, next};
  }
  template <class Function>
  Function function() {
    return reinterpret_cast<Function>(one());
  }

 private:
  const int64_t* next;
};

struct Output {
  int32_t dtype;
  std::vector<int64_t> shape, strides;
};

// A pointer is a tensor of which no plan's guard has compared the device and the dtype.
enum class Source : int64_t { output, tensor, integer, floating, constant, pointer, floating32 };

// Of what the kernel is passed: where it comes from, and the position of an output or argument, or else the constant.
// Of a tensor, the bits that its address may not have, and a bit for each dtype (none: any). Of an integer, its range.
struct Word {
  Source source;
  int64_t value, misaligned, dtypes, low, high;
};

struct CpuLibrary {
  Entry entry;
  std::vector<int64_t> sizes;
};

struct GpuKernel {
  LaunchKernel launch;
  CurrentStream current_stream;
  CurrentDevice current_device;
  void* kernel;
  std::array<unsigned, 7> shape;  // grid, block, bytes of shared memory
};

struct Plan {
  Py_ssize_t arguments;
  bool returns_tuple;
  int32_t device_type, device;
  std::vector<Output> outputs;
  std::vector<Word> words;
  bool on_gpu;
  CpuLibrary library;
  GpuKernel gpu;
};

Plan read_plan(Numbers numbers) {
  Plan plan{};
  plan.arguments = numbers.one();
  plan.returns_tuple = numbers.one();
  plan.device_type = numbers.one();
  plan.device = numbers.one();
  for (int64_t left = numbers.one(); left > 0; --left) {
    const auto dtype = static_cast<int32_t>(numbers.one());
    const int64_t dims = numbers.one();
    std::vector<int64_t> shape = numbers.some(dims);
    plan.outputs.push_back({dtype, std::move(shape), numbers.some(dims)});
  }
  for (int64_t left = numbers.one(); left > 0; --left) {
    const auto source = static_cast<Source>(numbers.one());
    const std::vector<int64_t> rest = numbers.some(5);
    plan.words.push_back({source, rest[0], rest[1] - 1, rest[2], rest[3], rest[4]});
  }
  plan.on_gpu = numbers.one();
  if (plan.on_gpu) {
    plan.gpu.launch = numbers.function<LaunchKernel>();
    plan.gpu.current_stream = numbers.function<CurrentStream>();
    plan.gpu.current_device = numbers.function<CurrentDevice>();
    plan.gpu.kernel = numbers.function<void*>();
    for (unsigned& each : plan.gpu.shape) each = static_cast<unsigned>(numbers.one());
  } else {
    plan.library.entry = numbers.function<Entry>();
    plan.library.sizes = numbers.some(numbers.one());
  }
  return plan;
}

// False where a tensor has none, such as one of a torch.func transform.
bool take_address(int64_t& taken, AtenTensorHandle tensor) {
  void* address = nullptr;
  const bool has_one = aoti_torch_get_data_ptr(tensor, &address) == AOTI_TORCH_SUCCESS;
  taken = reinterpret_cast<int64_t>(address);
  return has_one;
}

// One call: its words, and the outputs until Python has them.
class Call {
 public:
  explicit Call(const Plan& plan) : plan(plan) {}
  Call(const Call&) = delete;
  ~Call() {
    for (std::size_t i = 0; i < made; ++i) aoti_torch_delete_tensor_object(outputs[i]);
  }

  // False where an argument is not as the plan foresees.
  bool take(PyObject* const* given) {
    for (std::size_t i = 0; i < plan.words.size(); ++i) {
      const Word& word = plan.words[i];
      if (word.source == Source::constant) {
        words[i] = word.value;
      } else if (word.source != Source::output && !take_one(words[i], word, given[word.value])) {
        PyErr_Clear();
        return false;
      }
    }
    return true;
  }

  // False where there is no room, of which Python's way gives torch's own account.
  bool allocate() {
    for (const Output& each : plan.outputs) {
      if (aoti_torch_empty_strided(each.shape.size(), each.shape.data(), each.strides.data(), each.dtype,
                                   plan.device_type, plan.device, &outputs[made]) != AOTI_TORCH_SUCCESS) {
        return false;
      }
      ++made;
    }
    bool all = true;
    for (std::size_t i = 0; i < plan.words.size(); ++i) {
      const Word& word = plan.words[i];
      if (word.source == Source::output) all = all && take_address(words[i], outputs[word.value]);
    }
    return all;
  }

  // One more than the length of what the kernel said when it raised, or 0.
  int32_t run_library(char* message) {
    opwright::WithoutGil without;
    return plan.library.entry(words, plan.library.sizes.data(), message, room);
  }

  // False where another GPU is the current one, or the driver refused, of which Python's way says why, or puts it right.
  bool launch_on_gpu() {
    opwright::WithoutGil without;
    int32_t current = -1;
    void* stream = nullptr;
    if (plan.gpu.current_device(&current) != AOTI_TORCH_SUCCESS || current != plan.device) return false;
    if (plan.gpu.current_stream(plan.device, &stream) != AOTI_TORCH_SUCCESS) return false;
    void* parameters[most_words];
    for (std::size_t i = 0; i < plan.words.size(); ++i) parameters[i] = &words[i];
    const auto& [x, y, z, block_x, block_y, block_z, shared] = plan.gpu.shape;
    return plan.gpu.launch(plan.gpu.kernel, x, y, z, block_x, block_y, block_z, shared, stream, parameters, nullptr) == 0;
  }

  PyObject* result() {
    if (plan.outputs.empty()) Py_RETURN_NONE;
    if (!plan.returns_tuple) return opwright::to_python(outputs[0]);
    PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(made));
    for (std::size_t i = 0; tuple != nullptr && i < made; ++i) {
      PyObject* tensor = opwright::to_python(outputs[i]);
      if (tensor == nullptr) {
        Py_CLEAR(tuple);
      } else {
        PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), tensor);
      }
    }
    return tuple;
  }

 private:
  bool take_one(int64_t& taken, const Word& word, PyObject* object) const {
    switch (word.source) {
      case Source::tensor:
      case Source::pointer:
        return take_tensor(taken, word, object);
      case Source::integer:
        return take_integer(taken, word, object);
      default:
        return take_floating(taken, word, object);
    }
  }

  bool take_tensor(int64_t& taken, const Word& word, PyObject* object) const {
    if (!Py_IS_TYPE(object, tensor_type) && !Py_IS_TYPE(object, parameter_type)) return false;
    const opwright::HandleOf tensor(object);
    if (word.source == Source::pointer && !is_foreseen(tensor.handle, word)) return false;
    return take_address(taken, tensor.handle) && (taken & word.misaligned) == 0;
  }

  bool is_foreseen(AtenTensorHandle tensor, const Word& word) const {
    int32_t type = -1, device = -1, dtype = -1;
    check(aoti_torch_get_device_type(tensor, &type));
    check(aoti_torch_get_device_index(tensor, &device));
    check(aoti_torch_get_dtype(tensor, &dtype));
    return type == plan.device_type && device == plan.device && (word.dtypes == 0 || (word.dtypes >> dtype & 1) != 0);
  }

  static bool take_integer(int64_t& taken, const Word& word, PyObject* object) {
    if (!PyLong_Check(object)) return false;
    taken = PyLong_AsLongLong(object);
    return word.low <= taken && taken <= word.high && !(taken == -1 && PyErr_Occurred());
  }

  static bool take_floating(int64_t& taken, const Word& word, PyObject* object) {
    if (!PyFloat_Check(object) && !PyLong_Check(object)) return false;
    const double value = PyFloat_AsDouble(object);
    const auto single = static_cast<float>(value);  // what it cannot hold is an infinity
    if (word.source == Source::floating32) {
      taken = 0;
      std::memcpy(&taken, &single, sizeof(single));
    } else {
      std::memcpy(&taken, &value, sizeof(value));
    }
    return !(value == -1 && PyErr_Occurred());
  }

  const Plan& plan;
  int64_t words[most_words];
  AtenTensorHandle outputs[most_words];
  std::size_t made = 0;
};

constexpr const char* capsule_name = "opwright.plan";

// What a function of Python's holds: a tuple, so that Python's garbage collector sees whom it calls.
enum Held : Py_ssize_t { held_plan, held_otherwise, held_raised };

PyObject* raise_what_the_kernel_said(PyObject* self, const char* message, int32_t length) {
  PyObject* raised = PyTuple_GET_ITEM(self, held_raised);
  PyObject* returned = PyObject_CallFunction(raised, "y#", message, Py_ssize_t(length));
  if (returned != nullptr) PyErr_SetString(PyExc_RuntimeError, "a kernel raised");
  Py_XDECREF(returned);
  return nullptr;
}

PyObject* call_as_planned(const Plan& plan, PyObject* self, PyObject* const* given, Py_ssize_t count) {
  {
    Call call(plan);
    if (count == plan.arguments && call.take(given) && call.allocate()) {
      if (plan.on_gpu) {
        if (call.launch_on_gpu()) return call.result();
      } else {
        char message[room];
        const int32_t status = call.run_library(message);
        return status == 0 ? call.result() : raise_what_the_kernel_said(self, message, status - 1);
      }
    }
  }  // what was allocated is free again
  return PyObject_Vectorcall(PyTuple_GET_ITEM(self, held_otherwise), given, count, nullptr);
}

PyObject* call(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  const auto* plan = static_cast<Plan*>(PyCapsule_GetPointer(PyTuple_GET_ITEM(self, held_plan), capsule_name));
  if (plan == nullptr) return nullptr;
  if (count != plan->arguments && !plan->outputs.empty()) {
    PyErr_Format(PyExc_TypeError, "%zd arguments came, not %zd", count, plan->arguments);
    return nullptr;
  }
  try {
    return call_as_planned(*plan, self, given, count);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyMethodDef definition = {"planned_call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call)),
                          METH_FASTCALL, nullptr};

void forget(PyObject* capsule) { delete static_cast<Plan*>(PyCapsule_GetPointer(capsule, capsule_name)); }

}  // namespace

// Before anything else: the types of plain tensors, and how they are reached where torch has no functions for it.
extern "C" void opwright_reach_tensors(PyObject* type, PyObject* parameter, std::size_t offset,
                                       PyObject* (*wrap)(const void*)) {
  tensor_type = reinterpret_cast<PyTypeObject*>(type);
  parameter_type = reinterpret_cast<PyTypeObject*>(parameter);
  opwright::tensor_offset = offset;
  opwright::wrap = wrap;
}

// A function for a plan. `otherwise` takes the same arguments; `raised` takes what a kernel said, and raises.
extern "C" PyObject* opwright_planned_call(const int64_t* numbers, PyObject* otherwise, PyObject* raised) {
  PyObject* capsule = PyCapsule_New(new Plan(read_plan(Numbers(numbers))), capsule_name, &forget);
  PyObject* held = capsule == nullptr ? nullptr : PyTuple_Pack(3, capsule, otherwise, raised);
  PyObject* function = held == nullptr ? nullptr : PyCFunction_New(&definition, held);
  Py_XDECREF(held);
  Py_XDECREF(capsule);
  return function;
}
