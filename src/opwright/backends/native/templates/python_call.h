// A host function on torch::stable::Tensor as a Python function, without torch's dispatcher: each argument is taken from
// its Python object, without a schema. Only for calls whose arguments were checked.
#pragma once
#include <python_tensor.h>

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>

namespace opwright {
namespace {

using torch::stable::Tensor;

template <class T>
struct Taken {
  static constexpr bool known = false;
};

template <>
struct Taken<Tensor> {
  static constexpr bool known = true;
  static Tensor from(PyObject* object) { return Tensor(new_handle(object)); }
};

template <>
struct Taken<int64_t> {
  static constexpr bool known = true;
  static int64_t from(PyObject* object) {
    const long long value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) throw PythonError();
    return value;
  }
};

template <>
struct Taken<double> {
  static constexpr bool known = true;
  static double from(PyObject* object) {
    const double value = PyFloat_AsDouble(object);
    if (value == -1 && PyErr_Occurred()) throw PythonError();
    return value;
  }
};

template <>
struct Taken<bool> {
  static constexpr bool known = true;
  static bool from(PyObject* object) {
    const int value = PyObject_IsTrue(object);
    if (value < 0) throw PythonError();
    return value != 0;
  }
};

template <class T>
struct Taken<std::optional<T>> {
  static constexpr bool known = Taken<T>::known;
  static std::optional<T> from(PyObject* object) {
    if (object == Py_None) return std::nullopt;
    return Taken<T>::from(object);
  }
};

template <class T>
struct Returned {
  static constexpr bool known = false;
};

template <>
struct Returned<Tensor> {
  static constexpr bool known = true;
  static PyObject* to_python(const Tensor& tensor) { return opwright::to_python(tensor.get()); }
};

template <>
struct Returned<void> {
  static constexpr bool known = true;
};

template <class... T>
struct Returned<std::tuple<T...>> {
  static constexpr bool known = (std::is_same_v<T, Tensor> && ...);
  static PyObject* to_python(const std::tuple<T...>& tensors) {
    PyObject* made = PyTuple_New(sizeof...(T));
    if (made == nullptr) return nullptr;
    Py_ssize_t position = 0;
    const bool all = std::apply([&](const auto&... each) { return (place(made, position++, each) && ...); }, tensors);
    if (all) return made;
    Py_DECREF(made);
    return nullptr;
  }
  static bool place(PyObject* tuple, Py_ssize_t position, const Tensor& tensor) {
    PyObject* made = Returned<Tensor>::to_python(tensor);
    if (made != nullptr) PyTuple_SetItem(tuple, position, made);
    return made != nullptr;
  }
};

template <auto function, class Type = decltype(function)>
struct Call {
  static constexpr bool known = false;
};

template <auto function, class Result, class... Arguments>
struct Call<function, Result (*)(Arguments...)> {
  static constexpr bool known = Returned<Result>::known && (Taken<std::decay_t<Arguments>>::known && ...);

  static PyObject* call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count != sizeof...(Arguments)) {
      PyErr_Format(PyExc_TypeError, "the kernel takes %zd arguments, got %zd", Py_ssize_t(sizeof...(Arguments)),
                   count);
      return nullptr;
    }
    try {
      return with(arguments, std::index_sequence_for<Arguments...>());
    } catch (const PythonError&) {
      // Python's error is set.
    } catch (const std::bad_alloc& error) {  // from here on as pybind11 translates exceptions
      PyErr_SetString(PyExc_MemoryError, error.what());
    } catch (const std::out_of_range& error) {
      PyErr_SetString(PyExc_IndexError, error.what());
    } catch (const std::logic_error& error) {
      const bool is_of_value = dynamic_cast<const std::domain_error*>(&error) != nullptr ||
                               dynamic_cast<const std::invalid_argument*>(&error) != nullptr ||
                               dynamic_cast<const std::length_error*>(&error) != nullptr;
      PyErr_SetString(is_of_value ? PyExc_ValueError : PyExc_RuntimeError, error.what());
    } catch (const std::overflow_error& error) {
      PyErr_SetString(PyExc_OverflowError, error.what());
    } catch (const std::range_error& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
    } catch (...) {
      PyErr_SetString(PyExc_RuntimeError, "the kernel threw something that is not a std::exception");
    }
    return nullptr;
  }

  template <std::size_t... I>
  static PyObject* with(PyObject* const* arguments, std::index_sequence<I...>) {
    // Braces, so that arguments are taken in their order.
    std::tuple<std::decay_t<Arguments>...> taken{Taken<std::decay_t<Arguments>>::from(arguments[I])...};
    if constexpr (std::is_void_v<Result>) {
      [&] {
        WithoutGil without;
        function(static_cast<Arguments>(std::get<I>(taken))...);
      }();
      Py_RETURN_NONE;
    } else {
      const Result result = [&] {
        WithoutGil without;
        return function(static_cast<Arguments>(std::get<I>(taken))...);
      }();
      return Returned<Result>::to_python(result);
    }
  }

  static PyObject* python_function() {
    static PyMethodDef definition = {
        "kernel", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call)), METH_FASTCALL, nullptr};
    return PyCFunction_New(&definition, nullptr);
  }
};

// The Python function; None if the host function has a type that only the dispatcher passes.
template <auto function>
PyObject* python_function(std::size_t offset, PyObject* (*wrap_tensor)(const void*)) {
  tensor_offset = offset;
  wrap = wrap_tensor;
  if constexpr (Call<function>::known) {
    return Call<function>::python_function();
  } else {
    Py_RETURN_NONE;
  }
}

}  // namespace
}  // namespace opwright
