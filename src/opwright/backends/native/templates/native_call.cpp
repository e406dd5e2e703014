// Calls of a kernel that are like an earlier one, as one Python function: it takes the addresses of tensors, allocates
// the outputs, and runs the kernel. A call that is not as described goes to a Python function, which reports the error.
// native_call.py writes the numbers of a description in the order in which they are read here.
#include <extension.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using opwright::check;

// native_call.py describes no call with more: kernel arguments and outputs of a call are on the stack.
constexpr std::size_t most_arguments = OPWRIGHT_MOST_ARGUMENTS;
constexpr std::size_t message_size = 1000;  // bytes for the message of a kernel that raises

// The entry of a library, as Mojo's cpu_entry_text declares it; cuLaunchKernel; torch's current stream and device.
using Entry = int32_t (*)(const int64_t* arguments, const int64_t* sizes, char* message, int64_t message_size);
using LaunchKernel = int (*)(void* kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared,
                             void* stream, void** parameters, void** extra);
using CurrentStream = AOTITorchError (*)(int32_t device, void** stream);
using CurrentDevice = AOTITorchError (*)(int32_t* device);

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

// A pointer is a tensor whose device and dtype no guard has compared.
enum class Source : int64_t { output, tensor, integer, floating, constant, pointer, floating32 };

// An argument of a kernel: its source, and the position of the output or argument, or the constant. For a tensor: the
// bits that its address may not have, a bit for each dtype (none: any), and the bytes from the tensor's address to the
// kernel's. For an integer: its range.
struct KernelArgument {
  Source source;
  int64_t value, misaligned, dtypes, low, high, offset;
};

struct CpuLibrary {
  Entry entry;
  std::vector<int64_t> sizes;
};

struct Driver {
  LaunchKernel launch;
  CurrentStream current_stream;
  CurrentDevice current_device;
};

struct GpuKernel {
  void* kernel;
  std::array<unsigned, 7> shape;  // grid, block, bytes of shared memory
  std::size_t arguments;          // how many of the call's kernel arguments, after those of earlier kernels
};

struct Description {
  Py_ssize_t arguments;
  bool returns_tuple;
  int32_t device_type, device;
  std::vector<Output> outputs;
  std::size_t returned;  // the first of them; the others are scratch memory
  std::vector<KernelArgument> kernel_arguments;
  bool on_gpu;
  CpuLibrary library;
  Driver driver;
  std::vector<GpuKernel> kernels;
};

Description read_description(Numbers numbers) {
  Description description{};
  description.arguments = numbers.one();
  description.returns_tuple = numbers.one();
  description.device_type = numbers.one();
  description.device = numbers.one();
  for (int64_t left = numbers.one(); left > 0; --left) {
    const auto dtype = static_cast<int32_t>(numbers.one());
    const int64_t dims = numbers.one();
    std::vector<int64_t> shape = numbers.some(dims);
    description.outputs.push_back({dtype, std::move(shape), numbers.some(dims)});
  }
  description.returned = static_cast<std::size_t>(numbers.one());
  for (int64_t left = numbers.one(); left > 0; --left) {
    const auto source = static_cast<Source>(numbers.one());
    const std::vector<int64_t> rest = numbers.some(6);
    description.kernel_arguments.push_back({source, rest[0], rest[1] - 1, rest[2], rest[3], rest[4], rest[5]});
  }
  description.on_gpu = numbers.one();
  if (description.on_gpu) {
    description.driver.launch = numbers.function<LaunchKernel>();
    description.driver.current_stream = numbers.function<CurrentStream>();
    description.driver.current_device = numbers.function<CurrentDevice>();
    for (int64_t left = numbers.one(); left > 0; --left) {
      GpuKernel kernel{};
      kernel.kernel = numbers.function<void*>();
      for (unsigned& each : kernel.shape) each = static_cast<unsigned>(numbers.one());
      kernel.arguments = static_cast<std::size_t>(numbers.one());
      description.kernels.push_back(kernel);
    }
  } else {
    description.library.entry = numbers.function<Entry>();
    description.library.sizes = numbers.some(numbers.one());
  }
  return description;
}

// False if a tensor has no address, such as one of a torch.func transform.
bool take_address(int64_t& taken, AtenTensorHandle tensor) {
  void* address = nullptr;
  const bool has_address = aoti_torch_get_data_ptr(tensor, &address) == AOTI_TORCH_SUCCESS;
  taken = reinterpret_cast<int64_t>(address);
  return has_address;
}

// One call: its kernel arguments as 64-bit values, and the outputs until they are passed to Python.
class Call {
 public:
  explicit Call(const Description& description) : description(description) {}
  Call(const Call&) = delete;
  ~Call() {
    for (std::size_t i = 0; i < made; ++i) aoti_torch_delete_tensor_object(outputs[i]);
  }

  // False if an argument is not as described.
  bool take(PyObject* const* arguments) {
    for (std::size_t i = 0; i < description.kernel_arguments.size(); ++i) {
      const KernelArgument& argument = description.kernel_arguments[i];
      if (argument.source == Source::constant) {
        values[i] = argument.value;
      } else if (argument.source != Source::output && !take_one(values[i], argument, arguments[argument.value])) {
        PyErr_Clear();
        return false;
      }
    }
    return true;
  }

  // False if there is not enough memory: the fallback in Python then raises torch's own error.
  bool allocate() {
    for (const Output& each : description.outputs) {
      if (aoti_torch_empty_strided(each.shape.size(), each.shape.data(), each.strides.data(), each.dtype,
                                   description.device_type, description.device, &outputs[made]) != AOTI_TORCH_SUCCESS) {
        return false;
      }
      ++made;
    }
    bool all = true;
    for (std::size_t i = 0; i < description.kernel_arguments.size(); ++i) {
      const KernelArgument& argument = description.kernel_arguments[i];
      if (argument.source == Source::output) {
        all = all && take_address(values[i], outputs[argument.value]);
        values[i] += argument.offset;
      }
    }
    return all;
  }

  // 0, or one more than the length of the message of a kernel that raised.
  int32_t run_library(char* message) {
    opwright::WithoutGil without;
    return description.library.entry(values, description.library.sizes.data(), message, message_size);
  }

  // False if another GPU is the current one or the driver refused the first kernel. The fallback in Python corrects it
  // or raises the error. A later kernel that is refused is an error, since the first one may have written its arguments.
  bool launch_on_gpu() {
    opwright::WithoutGil without;
    const Driver& driver = description.driver;
    int32_t current = -1;
    void* stream = nullptr;
    if (driver.current_device(&current) != AOTI_TORCH_SUCCESS || current != description.device) return false;
    if (driver.current_stream(description.device, &stream) != AOTI_TORCH_SUCCESS) return false;
    void* parameters[most_arguments];
    for (std::size_t i = 0; i < description.kernel_arguments.size(); ++i) parameters[i] = &values[i];
    void** own = parameters;
    bool is_first = true;
    for (const GpuKernel& each : description.kernels) {
      const auto& [x, y, z, block_x, block_y, block_z, shared] = each.shape;
      const int status = driver.launch(each.kernel, x, y, z, block_x, block_y, block_z, shared, stream, own, nullptr);
      if (status != 0 && is_first) return false;
      if (status != 0) throw std::runtime_error("the driver refused a kernel, with CUDA error " + std::to_string(status));
      own += each.arguments;
      is_first = false;
    }
    return true;
  }

  PyObject* result() {
    if (description.returned == 0) Py_RETURN_NONE;
    if (!description.returns_tuple) return opwright::to_python(outputs[0]);
    PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(description.returned));
    for (std::size_t i = 0; tuple != nullptr && i < description.returned; ++i) {
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
  bool take_one(int64_t& taken, const KernelArgument& argument, PyObject* object) const {
    switch (argument.source) {
      case Source::tensor:
      case Source::pointer:
        return take_tensor(taken, argument, object);
      case Source::integer:
        return take_integer(taken, argument, object);
      default:
        return take_floating(taken, argument, object);
    }
  }

  bool take_tensor(int64_t& taken, const KernelArgument& argument, PyObject* object) const {
    if (!is_plain_tensor(object)) return false;
    const opwright::HandleOf tensor(object);
    if (argument.source == Source::pointer && !is_as_described(tensor.handle, argument)) return false;
    if (!take_address(taken, tensor.handle)) return false;
    taken += argument.offset;
    return (taken & argument.misaligned) == 0;
  }

  bool is_as_described(AtenTensorHandle tensor, const KernelArgument& argument) const {
    int32_t type = -1, device = -1, dtype = -1;
    check(aoti_torch_get_device_type(tensor, &type));
    check(aoti_torch_get_device_index(tensor, &device));
    check(aoti_torch_get_dtype(tensor, &dtype));
    return type == description.device_type && device == description.device && (argument.dtypes == 0 || (argument.dtypes >> dtype & 1) != 0);
  }

  static bool take_integer(int64_t& taken, const KernelArgument& argument, PyObject* object) {
    if (!PyLong_Check(object)) return false;
    taken = PyLong_AsLongLong(object);
    return argument.low <= taken && taken <= argument.high && !(taken == -1 && PyErr_Occurred());
  }

  static bool take_floating(int64_t& taken, const KernelArgument& argument, PyObject* object) {
    if (!PyFloat_Check(object) && !PyLong_Check(object)) return false;
    const double value = PyFloat_AsDouble(object);
    const auto single = static_cast<float>(value);  // a value beyond its range becomes an infinity
    if (argument.source == Source::floating32) {
      taken = 0;
      std::memcpy(&taken, &single, sizeof(single));
    } else {
      std::memcpy(&taken, &value, sizeof(value));
    }
    return !(value == -1 && PyErr_Occurred());
  }

  const Description& description;
  int64_t values[most_arguments];
  AtenTensorHandle outputs[most_arguments];
  std::size_t made = 0;
};

constexpr const char* capsule_name = "opwright.native_call";

// The parts of a Python function: a tuple, so that Python's garbage collector sees the functions that it calls.
enum Held : Py_ssize_t { held_description, held_fallback, held_raised };

PyObject* raise_message(PyObject* self, const char* message, int32_t length) {
  PyObject* raised = PyTuple_GET_ITEM(self, held_raised);
  PyObject* returned = PyObject_CallFunction(raised, "y#", message, Py_ssize_t(length));
  if (returned != nullptr) PyErr_SetString(PyExc_RuntimeError, "a kernel raised");
  Py_XDECREF(returned);
  return nullptr;
}

PyObject* call_as_described(const Description& description, PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  {
    Call call(description);
    if (count == description.arguments && call.take(arguments) && call.allocate()) {
      if (description.on_gpu) {
        if (call.launch_on_gpu()) return call.result();
      } else {
        char message[message_size];
        const int32_t status = call.run_library(message);
        return status == 0 ? call.result() : raise_message(self, message, status - 1);
      }
    }
  }  // the outputs are freed
  return PyObject_Vectorcall(PyTuple_GET_ITEM(self, held_fallback), arguments, count, nullptr);
}

PyObject* call(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const auto* description = static_cast<Description*>(PyCapsule_GetPointer(PyTuple_GET_ITEM(self, held_description), capsule_name));
  if (description == nullptr) return nullptr;
  if (count != description->arguments && description->returned != 0) {
    PyErr_Format(PyExc_TypeError, "the kernel takes %zd arguments, got %zd", description->arguments, count);
    return nullptr;
  }
  try {
    return call_as_described(*description, self, arguments, count);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyMethodDef definition = {"planned_call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call)),
                          METH_FASTCALL, nullptr};

void delete_description(PyObject* capsule) { delete static_cast<Description*>(PyCapsule_GetPointer(capsule, capsule_name)); }

}  // namespace

// A function for the described call. `fallback` takes the same arguments; `raised` takes a kernel's message, and raises.
extern "C" PyObject* opwright_native_call(const int64_t* numbers, PyObject* fallback, PyObject* raised) {
  PyObject* capsule = PyCapsule_New(new Description(read_description(Numbers(numbers))), capsule_name, &delete_description);
  PyObject* held = capsule == nullptr ? nullptr : PyTuple_Pack(3, capsule, fallback, raised);
  PyObject* function = held == nullptr ? nullptr : PyCFunction_New(&definition, held);
  Py_XDECREF(held);
  Py_XDECREF(capsule);
  return function;
}
