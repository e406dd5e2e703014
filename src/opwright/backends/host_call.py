"""Calling a host function that was built: through torch's dispatcher, or past it where that gives the same.

The dispatcher finds a private operator by its schema, and converts Python's objects by that schema and back: an
addition of 1,024 floats takes 1.9 µs through it and 0.8 µs past it (benchmarks/results/2026-11-21-cpu-calls.json). A
shared object therefore also exports its host function as a function of Python's own (``templates/python_call.h``). It
asks nothing of its arguments, so only calls that were recognised as like an earlier one come through it.
"""

from __future__ import annotations

import ctypes
import functools
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from opwright.backends.base import Launch, as_launch
from opwright.contract.contract import Contract

__all__ = ["HostFunction", "load_host_function", "python_headers"]

_EXPORTED = "opwright_python_function"
# ``PyObject* THPVariable_Wrap(const at::TensorBase&)``, or with its argument by value, which is passed in the same way.
_WRAP = ("_Z16THPVariable_WrapRKN2at10TensorBaseE", "_Z16THPVariable_WrapN2at10TensorBaseE")


def python_headers() -> Path | None:
    """The folder of this Python's headers, where they are installed."""
    folder = Path(sysconfig.get_path("include"))
    return folder if (folder / "Python.h").is_file() else None


class HostFunction:
    """A host function, loaded: takes the operator's arguments flat, in signature order."""

    def __init__(self, through_dispatcher: Launch, direct: Launch | None) -> None:
        self._through_dispatcher = through_dispatcher
        self._direct = direct

    def __call__(self, *arguments: Any) -> Any:
        return self._through_dispatcher(*arguments)

    def for_calls_like(self, arguments: Sequence[Any]) -> Launch:
        """See ``base.launch_for_calls_like``: nobody listens to such calls, and their tensors are torch's own."""
        return self._direct or self._through_dispatcher


def load_host_function(file: Path, unique: str, contract: Contract) -> HostFunction:
    """Load a shared object that a binding made, once for the process."""
    if not hasattr(torch.ops.opwright_kernels, unique):
        torch.ops.load_library(str(file))
    # The bound function behind the overload: its wrapper in Python would add a tenth to a call.
    operator = getattr(torch.ops.opwright_kernels, unique).default._op
    return HostFunction(as_launch(operator, contract), _direct(file))


def _direct(file: Path) -> Launch | None:
    """The host function as Python's; None where it was built without Python's headers, has arguments that only the
    dispatcher passes, or this torch keeps its tensors in a way that is not known."""
    make = getattr(ctypes.PyDLL(str(file)), _EXPORTED, None)
    access = _access_to_tensors()
    if make is None or access is None:
        return None
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_size_t, ctypes.c_void_p]
    function: Callable[..., Any] | None = make(*access)
    return function


@functools.cache
def _access_to_tensors() -> tuple[int, int | None] | None:
    """Where a Python tensor holds its C++ one, and the address of torch's function that wraps one.

    torch 2.14 has functions for both, which the shared object finds itself.
    """
    folder = Path(torch.__file__).parent / "lib"
    if hasattr(ctypes.CDLL(str(folder / "libtorch_cpu.so")), "torch_tensor_from_pyobject"):
        return 0, None
    offset, python = _offset_of_tensor(), ctypes.CDLL(str(folder / "libtorch_python.so"))
    wrap = next((getattr(python, name) for name in _WRAP if hasattr(python, name)), None)
    if offset is None or wrap is None:
        return None
    return offset, ctypes.cast(wrap, ctypes.c_void_p).value


def _offset_of_tensor() -> int | None:
    tensor = torch.empty(0)
    for offset in range(object.__basicsize__, torch.Tensor.__basicsize__, ctypes.sizeof(ctypes.c_void_p)):
        if ctypes.c_void_p.from_address(id(tensor) + offset).value == tensor._cdata:
            return offset
    return None
