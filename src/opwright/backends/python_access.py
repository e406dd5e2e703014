"""What native code has to know of this Python and this torch to take tensors from Python's objects, past the dispatcher.

The C++ side of it is ``templates/python_tensor.h``.
"""

from __future__ import annotations

import ctypes
import functools
import sysconfig
from pathlib import Path

import torch

__all__ = ["LIBRARIES", "access_to_tensors", "python_headers"]

LIBRARIES = Path(torch.__file__).parent / "lib"
# ``PyObject* THPVariable_Wrap(const at::TensorBase&)``, or with its argument by value, which is passed in the same way.
_WRAP = ("_Z16THPVariable_WrapRKN2at10TensorBaseE", "_Z16THPVariable_WrapN2at10TensorBaseE")


def python_headers() -> Path | None:
    """The folder of this Python's headers, where they are installed."""
    folder = Path(sysconfig.get_path("include"))
    return folder if (folder / "Python.h").is_file() else None


@functools.cache
def access_to_tensors() -> tuple[int, int | None] | None:
    """Where a Python tensor holds its C++ one, and the address of torch's function that wraps one.

    torch 2.14 has functions for both, which the shared object finds itself. None where neither is known.
    """
    if hasattr(ctypes.CDLL(str(LIBRARIES / "libtorch_cpu.so")), "torch_tensor_from_pyobject"):
        return 0, None
    offset, python = _offset_of_tensor(), ctypes.CDLL(str(LIBRARIES / "libtorch_python.so"))
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
