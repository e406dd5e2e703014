// A launcher in Python whose calls are repeated without Python, while nothing that it uses has changed.
// recorded_launch.py makes the parts.
#pragma once
#include <guarded_call.h>
#include <unchanged.h>

namespace opwright {
namespace {

enum class Part : Py_ssize_t {
  state,     // a capsule
  watched,   // what must be unchanged
  repeat,    // the repetition, a function of the call's arguments
  launch,    // the launcher
  verify,    // takes the arguments; makes the call both ways, compares, and returns the launcher's result
  count
};

struct RecordedState {
  std::vector<std::pair<std::size_t, PyObject*>> numbers;  // arguments that must be these values
  std::vector<Owned> values;
  int64_t calls = 0;
};

constexpr const char* recorded_capsule = "opwright.recorded_call";

PyObject* part_of(PyObject* self, Part part) { return PyTuple_GET_ITEM(self, static_cast<Py_ssize_t>(part)); }

RecordedState* recorded_state(PyObject* self) {
  return static_cast<RecordedState*>(PyCapsule_GetPointer(part_of(self, Part::state), recorded_capsule));
}

// Whether a recording is for these arguments, now.
bool is_recorded(const RecordedState& state, PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  for (const auto& [position, value] : state.numbers) {
    if (static_cast<Py_ssize_t>(position) >= count) return false;
    const int is_one = is_constant(arguments[position], value);
    if (is_one < 0) throw_python_error();
    if (is_one == 0) return false;
  }
  return is_unchanged(part_of(self, Part::watched));
}

PyObject* call_recorded(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  RecordedState* state = recorded_state(self);
  if (state == nullptr) return nullptr;
  Part part = Part::launch;
  if (is_recorded(*state, self, arguments, count)) {
    part = is_verified(state->calls++) ? Part::verify : Part::repeat;
  }
  return PyObject_Vectorcall(part_of(self, part), arguments, count, nullptr);
  END_HANDLE_TH_ERRORS
}

PyMethodDef recorded_definition = {"recorded_call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_recorded)),
                                   METH_FASTCALL, nullptr};

void delete_recorded(PyObject* capsule) {
  delete static_cast<RecordedState*>(PyCapsule_GetPointer(capsule, recorded_capsule));
}

}  // namespace
}  // namespace opwright

// A function of a call's arguments. `numbers` is a tuple of (position, value).
extern "C" PyObject* opwright_recorded_call(PyObject* watched, PyObject* numbers, PyObject* repeat, PyObject* launch,
                                            PyObject* verify) {
  using namespace opwright;
  auto state = std::make_unique<RecordedState>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); ++i) {
    PyObject* each = PyTuple_GET_ITEM(numbers, i);
    state->values.push_back(Owned::from(PyTuple_GET_ITEM(each, 1)));
    state->numbers.emplace_back(PyLong_AsSize_t(PyTuple_GET_ITEM(each, 0)), PyTuple_GET_ITEM(each, 1));
  }
  const Owned capsule(PyCapsule_New(state.get(), recorded_capsule, &delete_recorded));
  if (!capsule) return nullptr;
  state.release();
  const Owned self(PyTuple_Pack(static_cast<Py_ssize_t>(Part::count), capsule.get(), watched, repeat, launch, verify));
  return self ? PyCFunction_New(&recorded_definition, self.get()) : nullptr;
}
